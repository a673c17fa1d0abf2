package layer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline/model"
)

// reference runs the plain references of a step's operations, in their order, and compares what
// they give with a device's result. Scores and attention read the device's entries: those may
// differ from the reference's by a rounding, which only the comparison of pools allows.
func (l *coreLayer) reference(t *testing.T, tokens int, steps [][]part, got coreResult, variant string) {
	t.Helper()
	noErr := func(err error) {
		t.Helper()
		require.NoError(t, err)
	}
	for n, parts := range steps {
		h := newCoreStep(tokens, parts)
		real := int(h.queryStart[2])
		slots := func(pool, page, ratio int) []int64 {
			v := make([]int64, tokens)
			noErr(cache.SlotMappingRef(v, h.queryStart, h.seqLens, l.tables[pool], l.widths[pool], page, ratio))
			return v
		}
		table := func(pool, page int) attention.Table {
			return attention.Table{Blocks: l.tables[pool], R: 2, W: l.widths[pool], Page: page}
		}
		winSlots := slots(winPool, 64, 1)
		noErr(cache.InsertRef(l.host[winPool], l.caches.Window.Layout, rowsOf(h, l.kv, 512, 0), winSlots))
		var comp *attention.Slots
		if l.spec.Compresses() {
			x := cache.CompressHost{Compression: l.compression(), Positions: h.positions, TokenToReq: h.tokenToReq,
				StateSlots: slots(statePool, l.caches.State.Layout.Page, 1),
				Slots:      slots(compPool, l.caches.Compressed.Layout.Page, l.spec.Ratio), State: l.host[statePool],
				Layout:     l.caches.State.Layout,
				StateTable: l.tables[statePool], Width: l.widths[statePool], Norm: l.norm, CosSin: l.cosSin}
			noErr(cache.SaveStateRef(x.State, x.Layout, l.compression(), rowsOf(h, l.gates, 2*l.compression().Channels(), 0),
				l.ape, h.positions, x.StateSlots))
			noErr(cache.CompressRef(l.host[compPool], l.caches.Compressed.Layout, x))
			l.keep(t, compPool, x)
		}
		compTable := table(compPool, l.caches.Compressed.Layout.Page)
		switch {
		case l.spec.Picks == model.PickOwn:
			picks := l.referencePicks(t, h, slots, got.pools[keysPool])
			for i := range real {
				r, p := h.tokenToReq[i], h.positions[i]
				if g, want := got.topK[r][int(p)*coreTopK:][:coreTopK], picks[i*coreTopK:][:coreTopK]; !slices.Equal(g, want) {
					t.Fatalf("step %d: request %d, position %d: picks %v, want %v", n, r, p, g, want)
				}
			}
			s, lens := attention.GlobalTopKRef(picks, coreTopK, h.tokenToReq, compTable, h.valid)
			comp = &attention.Slots{Pool: got.pools[compPool], Layout: l.caches.Compressed.Layout, Indices: s, Width: coreTopK, Lens: lens}
		case l.spec.Ratio > 0:
			width := attention.C128Width(coreLonger, l.spec.Ratio)
			s, lens := attention.C128IndicesRef(h.positions, l.spec.Ratio, width, winSlots, h.tokenToReq, &compTable)
			comp = &attention.Slots{Pool: got.pools[compPool], Layout: l.caches.Compressed.Layout, Indices: s, Width: width, Lens: lens}
		}
		win := &attention.Slots{Pool: l.host[winPool], Layout: l.caches.Window.Layout, Indices: make([]int32, tokens*128),
			Width: 128, Lens: make([]int32, tokens)}
		attention.WindowIndicesRef(tokens, 128, h.queryStart, h.seqLens, h.tokenToReq, h.valid, table(winPool, 64), win.Indices, win.Lens)
		l.attended(t, fmt.Sprint("step ", n), h, win, comp, got, variant)
	}
	l.samePools(t, got)
}

// samePools compares the device's pools with the host's, entries but for roundings.
func (l *coreLayer) samePools(t *testing.T, got coreResult) {
	t.Helper()
	for i := range l.host {
		if len(l.host[i]) == 0 {
			continue
		}
		cmp := verify.NewComparison(verify.ClassBoundary)
		a, b := vectors.New(vectors.U8, len(got.pools[i])), vectors.New(vectors.U8, len(l.host[i]))
		copy(a.Data, got.pools[i])
		copy(b.Data, l.host[i])
		switch i {
		case compPool:
			cmp.BoundaryKV("entries", a, b, l.entries[i], l.caches.Compressed.Layout)
		case keysPool:
			cmp.BoundaryKeys("keys", a, b, l.entries[i], l.caches.Keys.Layout)
		default:
			cmp.Exact(fmt.Sprint("pool ", i), a, b)
		}
		r := cmp.Result()
		assert.True(t, r.Pass, r.Detail)
	}
}

// attended compares the attention's output with the reference's, of the same slots.
func (l *coreLayer) attended(t *testing.T, step string, h coreStep, win, comp *attention.Slots, got coreResult, variant string) {
	t.Helper()
	q := rowsOf(h, l.q, coreHeads*512, 0)
	want, _, err := attention.DecodeRef(q, coreHeads, win, comp, l.sink, attention.DefaultScale)
	require.NoError(t, err)
	var out []uint16
	for _, p := range h.parts {
		out = append(out, got.out[p.request][p.from*coreHeads*512:p.to*coreHeads*512]...)
	}
	sides := 0
	if verify.RoundsWeights(variant) {
		sides = 1
	}
	cmp := verify.NewComparison(verify.ClassTolerance).CloseWeighted("out", vectors.FromU16(out, len(out)),
		vectors.FromF32(want[:len(out)], len(out)), verify.DecodeOut,
		sides, func() ([]float32, error) {
			v, err := attention.DecodeSpreadRef(q, coreHeads, win, comp, l.sink, attention.DefaultScale)
			return v[:min(len(v), len(out))], err
		})
	r := cmp.Result()
	require.True(t, r.Pass, "%s: %s", step, r.Detail)
}

// keep remembers the entries of a step for the comparison at the end.
func (l *coreLayer) keep(t *testing.T, pool int, x cache.CompressHost) {
	t.Helper()
	e, err := x.Entries()
	require.NoError(t, err)
	l.entries[pool] = append(l.entries[pool], e...)
}

// referencePicks runs the references of the indexer, with the device's keys for the scores, and
// returns [T, TopK].
func (l *coreLayer) referencePicks(t *testing.T, h coreStep, slots func(pool, page, ratio int) []int64, pool []byte) []int32 {
	t.Helper()
	tokens, row, keys := len(h.valid), l.format.RowBytes(), l.caches.Keys.Layout
	x := cache.CompressHost{Compression: l.keys(), Hadamard: l.hadamard, Positions: h.positions, TokenToReq: h.tokenToReq,
		StateSlots: slots(indexStatePool, 4, 1), Slots: slots(keysPool, keys.Page, l.spec.Ratio), State: l.host[indexStatePool],
		Layout:     l.caches.IndexState.Layout,
		StateTable: l.tables[indexStatePool], Width: l.widths[indexStatePool], Norm: l.iNorm, CosSin: l.cosSin}
	err := cache.SaveStateRef(x.State, x.Layout, l.keys(), rowsOf(h, l.indexGates, 2*l.keys().Channels(), 0), l.iApe, h.positions,
		x.StateSlots)
	if err == nil {
		err = cache.CompressKeysRef(l.host[keysPool], keys, x)
		l.keep(t, keysPool, x)
	}
	s := indexer.LogitsHost{Heads: coreIndexHeads, Q: make([]byte, tokens*coreIndexHeads*row), Weights: make([]float32,
		tokens*coreIndexHeads),
		Pool: pool, Layout: keys, BlockTable: l.tables[keysPool], TableWidth: l.widths[keysPool], TokenToReq: h.tokenToReq,
		Lens: make([]int32, tokens), Width: l.widths[keysPool] * keys.Page}
	if l.format == cache.IndexKeyMXFP4 {
		s.QScale = make([]byte, tokens*coreIndexHeads*cache.IndexScaleBytes)
	}
	indexer.VisibleRef(h.positions, h.valid, l.spec.Ratio, 0, s.Lens)
	logits := make([]float32, tokens*s.Width)
	if err == nil {
		err = indexer.QueryQuantRef(rowsOf(h, l.iq, coreIndexHeads*128, 0), coreIndexHeads, h.positions, rowsOf(h, l.weights,
			coreIndexHeads, 0),
			l.cosSin, indexer.QueryQuantConfig{Format: l.format, Hadamard: l.hadamard}, s.Q, s.QScale, s.Weights)
	}
	if err == nil {
		err = indexer.LogitsRef(s, logits)
	}
	require.NoError(t, err)
	return indexer.TopKRef(logits, s.Width, s.Lens, coreTopK)
}
