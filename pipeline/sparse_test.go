package pipeline_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// sparseCase is a kind of layer.
type sparseCase struct {
	name     string
	ratio    int
	format   cache.IndexKeyFormat
	hadamard bool
}

var sparseCases = []sparseCase{
	{"window", pipeline.RatioWindow, 0, false},
	{"c4a fp8", pipeline.RatioC4A, cache.IndexKeyFP8, false},
	{"c4a mxfp4", pipeline.RatioC4A, cache.IndexKeyMXFP4, false},
	{"c4a mxfp4 rotated", pipeline.RatioC4A, cache.IndexKeyMXFP4, true},
	{"c128a", pipeline.RatioC128A, 0, false},
}

const (
	sparseHeads, sparseIndexHeads, sparseTopK = 3, 4, 17
	sparseLonger, sparseShorter               = 301, 133 // tokens of the two requests
)

// Index of the pools of a layer in sparseLayer.host.
const (
	winPool = iota
	compPool
	statePool
	indexStatePool
	keysPool
	pools
)

// sparseLayer is a layer with two requests: what their tokens bring, by position,
// and the caches with the pages of both, in random order among others.
type sparseLayer struct {
	sparseCase
	rng *rand.Rand
	cfg pipeline.SparseConfig

	comp                      cache.Compression
	q, kv, iq, weights        [2][]uint16 // of a token: [H, 512], [512], [Hi, 128], [Hi]
	kvScore, indexScore       [2][]float32
	ape, norm, iApe, iNorm    []float32
	cosSin                    []float32
	sink                      []float32
	tables                    [pools][]int32 // [2, widths[i]]
	widths, pageTokens, pages [pools]int
	strides                   [pools]int
	host                      [pools][]byte
	entries                   [pools][]cache.CompressedEntry // what the references stored in host[compPool] and host[keysPool]
}

func newSparseLayer(t testing.TB, c sparseCase) *sparseLayer {
	rng := rand.New(rand.NewPCG(11, uint64(len(c.name))))
	l := &sparseLayer{sparseCase: c, rng: rng}
	floats := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	d := &l.cfg.DecodeConfig
	d.Heads, d.Ratio = sparseHeads, c.ratio
	d.WindowCache.Layout = must[cache.Layout](t)(cache.NewLayout(64, 0))
	set := func(pool, pageTokens, stride int) {
		n := (sparseLonger + pageTokens - 1) / pageTokens
		l.widths[pool], l.pageTokens[pool], l.pages[pool], l.strides[pool] = n, pageTokens, 2*n+3, stride
		for _, id := range rng.Perm(2*n + 3)[:2*n] {
			l.tables[pool] = append(l.tables[pool], int32(id))
		}
		l.host[pool] = filled((2*n+3)*stride, byte(0xFF))
	}
	set(winPool, 64, d.WindowCache.Layout.Stride)
	switch c.ratio {
	case pipeline.RatioC4A:
		l.comp = cache.C4Main
		d.TopK, d.CompressedCache.Layout = sparseTopK, must[cache.Layout](t)(cache.NewLayout(16, 0))
		l.cfg.State.Layout = must[cache.StateLayout](t)(cache.NewStateLayout(cache.C4Main, 4, 0))
		l.cfg.IndexState.Layout = must[cache.StateLayout](t)(cache.NewStateLayout(cache.C4Index, 4, 0))
		l.cfg.Keys.Layout = must[cache.IndexKeyLayout](t)(cache.NewIndexKeyLayout(c.format, 16, 0))
		l.cfg.IndexHeads, l.cfg.Hadamard = sparseIndexHeads, c.hadamard
		set(indexStatePool, 4, l.cfg.IndexState.Layout.Stride)
		set(keysPool, 64, l.cfg.Keys.Layout.Stride)
	case pipeline.RatioC128A:
		l.comp = cache.C128Main
		d.MaxLen, d.CompressedCache.Layout = sparseLonger, must[cache.Layout](t)(cache.NewLayout(2, 0))
		l.cfg.State.Layout = must[cache.StateLayout](t)(cache.NewStateLayout(cache.C128Main, 8, 0))
	}
	if c.ratio != pipeline.RatioWindow {
		set(compPool, d.CompressedCache.Layout.Page*c.ratio, d.CompressedCache.Layout.Stride)
		set(statePool, l.cfg.State.Layout.Page, l.cfg.State.Layout.Stride)
		l.ape, l.norm = floats(c.ratio*l.comp.Channels()), floats(l.comp.Dim)
		l.iApe, l.iNorm = floats(4*cache.C4Index.Channels()), floats(cache.IndexDim)
	}
	for r, n := range []int{sparseLonger, sparseShorter} {
		l.q[r], l.kv[r] = normal(rng, n*sparseHeads*512), normal(rng, n*512)
		l.iq[r], l.weights[r] = normal(rng, n*sparseIndexHeads*128), normal(rng, n*sparseIndexHeads)
		l.kvScore[r], l.indexScore[r] = floats(n*2*max(l.comp.Channels(), 1)), floats(n*2*cache.C4Index.Channels())
	}
	for i := range sparseLonger * cache.RopeDim {
		angle := float64(i/cache.RopeDim) / math.Pow(160000, float64(i%32)/32)
		l.cosSin = append(l.cosSin, float32(math.Cos(angle-math.Pi/2*float64(i%64/32))))
	}
	l.sink = []float32{float32(math.Inf(-1)), 0, 1}
	return l
}

// part is the tokens from a position to before another of a request.
type part struct{ request, from, to int }

// sparseStep is a step in host memory.
type sparseStep struct {
	parts                                      []part
	queryStart, seqLens, tokenToReq, positions []int32
	valid                                      []byte
}

func newSparseStep(tokens int, parts []part) sparseStep {
	s := sparseStep{parts: parts, queryStart: []int32{0}, tokenToReq: make([]int32, tokens), positions: make([]int32, tokens), valid: make([]byte, tokens)}
	at := 0
	for _, p := range parts { // one for each request, in order; it may be empty
		for i := p.from; i < p.to; i++ {
			s.tokenToReq[at], s.positions[at], s.valid[at] = int32(p.request), int32(i), 1
			at++
		}
		s.queryStart, s.seqLens = append(s.queryStart, int32(at)), append(s.seqLens, int32(p.to))
	}
	return s
}

// rowsOf lines up what the tokens of a step bring, with poison for padding.
func rowsOf[T any](s sparseStep, of [2][]T, width int, poison T) []T {
	v := make([]T, 0, len(s.valid)*width)
	for _, p := range s.parts {
		v = append(v, of[p.request][p.from*width:p.to*width]...)
	}
	return append(v, filled(len(s.valid)*width-len(v), poison)...)
}

// oneByOne gives a step for every token of the longer request, tokens being what a
// step has room for.
func oneByOne() (tokens int, steps [][]part) {
	for i := range sparseLonger {
		j := min(i, sparseShorter)
		steps = append(steps, []part{{0, i, i + 1}, {1, j, min(i+1, sparseShorter)}})
	}
	return 3, steps
}

// inChunks gives steps of very different lengths, some without a token of one request.
func inChunks() (tokens int, steps [][]part) {
	a, b := 0, 0
	for i := 0; a < sparseLonger || b < sparseShorter; i++ {
		n, m := min(sparseLonger, a+[]int{61, 3, 1, 130}[i%4]), min(sparseShorter, b+[]int{5, 69, 0}[i%3])
		steps = append(steps, []part{{0, a, n}, {1, b, m}})
		a, b = n, m
	}
	return 200, steps
}

// sparseResult is what a division gave: the pools, and for every token its picks and
// output.
type sparseResult struct {
	pools [pools][]byte
	topk  [2][]int32
	out   [2][]uint16
}

// device runs a division on the device with commands that are recorded once.
func (l *sparseLayer) device(t *testing.T, dev *vk.Device, tokens int, steps [][]part, variant string) (res sparseResult) {
	t.Helper()
	cfg := l.cfg
	cfg.Tokens, cfg.Variant, cfg.Group = tokens, variant, tokens/4
	s := must[*pipeline.Sparse](t)(pipeline.NewSparse(dev, cfg))
	defer s.Close()
	alloc := func(dt tensor.DType, shape ...int) tensor.Tensor {
		x := must[tensor.Tensor](t)(tensor.New(dev, "test", dt, shape...))
		t.Cleanup(func() { x.Close() })
		return x
	}
	var pool [pools]tensor.Tensor
	var table [pools]tensor.Tensor
	for i := range pool {
		if l.pages[i] > 0 {
			pool[i], table[i] = alloc(tensor.U8, l.pages[i], l.strides[i]), alloc(tensor.I32, 2, l.widths[i])
			put(t, pool[i], filled(l.pages[i]*l.strides[i], byte(0xFF)))
			put(t, table[i], l.tables[i])
		}
	}
	f32 := func(v []float32, shape ...int) tensor.Tensor {
		x := alloc(tensor.F32, shape...)
		put(t, x, v)
		return x
	}
	step := pipeline.SparseStepArgs{StepArgs: pipeline.StepArgs{
		QueryStart: alloc(tensor.I32, 3), SeqLens: alloc(tensor.I32, 2), TokenToReq: alloc(tensor.I32, tokens),
		Positions: alloc(tensor.I32, tokens), IsValid: alloc(tensor.U8, tokens), WindowTable: table[winPool], CompressedTable: table[compPool],
	}, StateTable: table[statePool], IndexStateTable: table[indexStatePool], KeysTable: table[keysPool]}
	a := pipeline.SparseLayerArgs{LayerArgs: pipeline.LayerArgs{
		Q: alloc(tensor.BF16, tokens, sparseHeads, 512), KV: alloc(tensor.BF16, tokens, 512), Sink: f32(l.sink, sparseHeads),
		Window:     cache.KVCache{Pool: pool[winPool], Layout: l.cfg.WindowCache.Layout},
		Compressed: cache.KVCache{Pool: pool[compPool], Layout: l.cfg.CompressedCache.Layout},
		Out:        alloc(tensor.BF16, tokens, sparseHeads, 512), LSE: alloc(tensor.F32, tokens, sparseHeads),
	}}
	if l.ratio != pipeline.RatioWindow {
		a.CosSin = f32(l.cosSin, sparseLonger, cache.RopeDim)
		a.Compressor = pipeline.CompressorArgs{KvScore: alloc(tensor.F32, tokens, 2*l.comp.Channels()), Ape: f32(l.ape, l.ratio, l.comp.Channels()),
			Norm: f32(l.norm, l.comp.Dim), State: cache.StateCache{Pool: pool[statePool], Layout: l.cfg.State.Layout}}
	}
	if l.ratio == pipeline.RatioC4A {
		n := cache.C4Index.Channels()
		a.Index = pipeline.IndexArgs{CompressorArgs: pipeline.CompressorArgs{KvScore: alloc(tensor.F32, tokens, 2*n), Ape: f32(l.iApe, 4, n),
			Norm: f32(l.iNorm, cache.IndexDim), State: cache.StateCache{Pool: pool[indexStatePool], Layout: l.cfg.IndexState.Layout}},
			Keys: cache.IndexKeyCache{Pool: pool[keysPool], Layout: l.cfg.Keys.Layout},
			Q:    alloc(tensor.BF16, tokens, sparseIndexHeads, 128), Weights: alloc(tensor.BF16, tokens, sparseIndexHeads)}
	}
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	if err := errors.Join(s.RecordStep(rec, step), s.RecordLayer(rec, step, a)); err != nil {
		t.Fatal(err)
	}
	cmd := must[*vk.Commands](t)(rec.End())
	defer cmd.Close()

	const nan = 0x7FC0
	nan32 := float32(math.NaN())
	for _, parts := range steps {
		h := newSparseStep(tokens, parts)
		put(t, step.QueryStart, h.queryStart)
		put(t, step.SeqLens, h.seqLens)
		put(t, step.TokenToReq, h.tokenToReq)
		put(t, step.Positions, h.positions)
		put(t, step.IsValid, h.valid)
		put(t, a.Q, rowsOf(h, l.q, sparseHeads*512, uint16(nan)))
		put(t, a.KV, rowsOf(h, l.kv, 512, uint16(nan)))
		put(t, a.Out, filled(tokens*sparseHeads*512, uint16(nan)))
		if l.ratio != pipeline.RatioWindow {
			put(t, a.Compressor.KvScore, rowsOf(h, l.kvScore, 2*l.comp.Channels(), nan32))
		}
		if l.ratio == pipeline.RatioC4A {
			put(t, a.Index.KvScore, rowsOf(h, l.indexScore, 2*cache.C4Index.Channels(), nan32))
			put(t, a.Index.Q, rowsOf(h, l.iq, sparseIndexHeads*128, uint16(nan)))
			put(t, a.Index.Weights, rowsOf(h, l.weights, sparseIndexHeads, uint16(nan)))
		}
		if err := cmd.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		out, topk := take[uint16](t, a.Out), []int32(nil)
		if x := s.TopK(); !x.IsZero() {
			topk = take[int32](t, x)
		}
		at := 0
		for _, p := range parts {
			n := p.to - p.from
			res.out[p.request] = append(res.out[p.request], out[at*sparseHeads*512:(at+n)*sparseHeads*512]...)
			if topk != nil {
				res.topk[p.request] = append(res.topk[p.request], topk[at*sparseTopK:(at+n)*sparseTopK]...)
			}
			at += n
		}
		for i, x := range out[at*sparseHeads*512:] {
			if x != 0 {
				t.Fatalf("padding: element %d of the output is %#x, want 0", i, x)
			}
		}
		for i, x := range topk[min(at*sparseTopK, len(topk)):] {
			if x != -1 {
				t.Fatalf("padding: pick %d is %d, want -1", i, x)
			}
		}
	}
	for i := range pool {
		if !pool[i].IsZero() {
			res.pools[i] = take[byte](t, pool[i])
		}
	}
	return res
}

// take downloads a tensor.
func take[T any](t testing.TB, x tensor.Tensor) []T {
	t.Helper()
	b, v := make([]byte, x.Bytes()), make([]T, x.Len())
	err := x.Download(t.Context(), b)
	if err == nil {
		_, err = binary.Decode(b, binary.LittleEndian, v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// reference runs the plain references of a step's operations, in their order, over
// the host's pools, and compares what it gives with a device's result.
func (l *sparseLayer) reference(t *testing.T, tokens int, steps [][]part, got sparseResult, variant string) {
	t.Helper()
	noErr := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for n, parts := range steps {
		h := newSparseStep(tokens, parts)
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
		noErr(cache.InsertRef(l.host[winPool], l.cfg.WindowCache.Layout, rowsOf(h, l.kv, 512, 0), winSlots))
		var comp *attention.Slots
		if l.ratio != pipeline.RatioWindow {
			x := cache.CompressHost{Compression: l.comp, Positions: h.positions, TokenToReq: h.tokenToReq, StateSlots: slots(statePool, l.cfg.State.Layout.Page, 1),
				Slots: slots(compPool, l.cfg.CompressedCache.Layout.Page, l.ratio), State: l.host[statePool], Layout: l.cfg.State.Layout,
				StateTable: l.tables[statePool], Width: l.widths[statePool], Norm: l.norm, CosSin: l.cosSin}
			noErr(cache.SaveStateRef(x.State, x.Layout, l.comp, rowsOf(h, l.kvScore, 2*l.comp.Channels(), 0), l.ape, h.positions, x.StateSlots))
			noErr(cache.CompressRef(l.host[compPool], l.cfg.CompressedCache.Layout, x))
			l.keep(t, compPool, x)
		}
		compTable := table(compPool, l.cfg.CompressedCache.Layout.Page)
		switch l.ratio {
		case pipeline.RatioC4A:
			picks := l.referencePicks(t, h, slots)
			for i := range real {
				r, p := h.tokenToReq[i], h.positions[i]
				if g, want := got.topk[r][int(p)*sparseTopK:][:sparseTopK], picks[i*sparseTopK:][:sparseTopK]; !slices.Equal(g, want) {
					t.Fatalf("step %d: request %d, position %d: picks %v, want %v", n, r, p, g, want)
				}
			}
			s, lens := attention.GlobalTopKRef(picks, sparseTopK, h.tokenToReq, compTable, h.valid)
			comp = &attention.Slots{Pool: l.host[compPool], Layout: l.cfg.CompressedCache.Layout, Indices: s, Width: sparseTopK, Lens: lens}
		case pipeline.RatioC128A:
			width := attention.C128Width(sparseLonger, 128)
			s, lens := attention.C128IndicesRef(h.positions, 128, width, winSlots, h.tokenToReq, &compTable)
			comp = &attention.Slots{Pool: l.host[compPool], Layout: l.cfg.CompressedCache.Layout, Indices: s, Width: width, Lens: lens}
		}
		win := &attention.Slots{Pool: l.host[winPool], Layout: l.cfg.WindowCache.Layout, Indices: make([]int32, tokens*128), Width: 128, Lens: make([]int32, tokens)}
		attention.WindowIndicesRef(tokens, 128, h.queryStart, h.seqLens, h.tokenToReq, h.valid, table(winPool, 64), win.Indices, win.Lens)
		q := rowsOf(h, l.q, sparseHeads*512, 0)
		want, _, err := attention.DecodeRef(q, sparseHeads, win, comp, l.sink, attention.DefaultScale)
		noErr(err)
		var out []uint16
		for _, p := range parts {
			out = append(out, got.out[p.request][p.from*sparseHeads*512:p.to*sparseHeads*512]...)
		}
		sides := 0
		if verify.RoundsWeights(variant) {
			sides = 1
		}
		cmp := verify.NewComparison(verify.ClassTolerance).CloseWeighted("out", vectors.FromU16(out, len(out)), vectors.FromF32(want[:len(out)], len(out)), verify.DecodeOut,
			sides, func() ([]float32, error) {
				v, err := attention.DecodeSpreadRef(q, sparseHeads, win, comp, l.sink, attention.DefaultScale)
				return v[:min(len(v), len(out))], err
			})
		if r := cmp.Result(); !r.Pass {
			t.Fatalf("step %d: %s", n, r.Detail)
		}
	}
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
			cmp.BoundaryKV("entries", a, b, l.entries[i], l.cfg.CompressedCache.Layout)
		case keysPool:
			cmp.BoundaryKeys("keys", a, b, l.entries[i], l.cfg.Keys.Layout)
		default:
			cmp.Exact(fmt.Sprint("pool ", i), a, b)
		}
		if r := cmp.Result(); !r.Pass {
			t.Error(r.Detail)
		}
	}
}

// keep remembers the entries of a step for the comparison at the end.
func (l *sparseLayer) keep(t *testing.T, pool int, x cache.CompressHost) {
	t.Helper()
	e, err := x.Entries()
	if err != nil {
		t.Fatal(err)
	}
	l.entries[pool] = append(l.entries[pool], e...)
}

// referencePicks runs the references of the indexer and returns [T, TopK].
func (l *sparseLayer) referencePicks(t *testing.T, h sparseStep, slots func(pool, page, ratio int) []int64) []int32 {
	t.Helper()
	tokens, row, keys := len(h.valid), l.format.RowBytes(), l.cfg.Keys.Layout
	x := cache.CompressHost{Compression: cache.C4Index, Hadamard: l.hadamard, Positions: h.positions, TokenToReq: h.tokenToReq,
		StateSlots: slots(indexStatePool, 4, 1), Slots: slots(keysPool, keys.Page, 4), State: l.host[indexStatePool], Layout: l.cfg.IndexState.Layout,
		StateTable: l.tables[indexStatePool], Width: l.widths[indexStatePool], Norm: l.iNorm, CosSin: l.cosSin}
	err := cache.SaveStateRef(x.State, x.Layout, cache.C4Index, rowsOf(h, l.indexScore, 2*cache.C4Index.Channels(), 0), l.iApe, h.positions, x.StateSlots)
	if err == nil {
		err = cache.CompressKeysRef(l.host[keysPool], keys, x)
		l.keep(t, keysPool, x)
	}
	s := indexer.LogitsHost{Heads: sparseIndexHeads, Q: make([]byte, tokens*sparseIndexHeads*row), Weights: make([]float32, tokens*sparseIndexHeads),
		Pool: l.host[keysPool], Layout: keys, BlockTable: l.tables[keysPool], TableWidth: l.widths[keysPool], TokenToReq: h.tokenToReq,
		Lens: make([]int32, tokens), Width: l.widths[keysPool] * keys.Page}
	if l.format == cache.IndexKeyMXFP4 {
		s.QScale = make([]byte, tokens*sparseIndexHeads*cache.IndexScaleBytes)
	}
	indexer.VisibleRef(h.positions, h.valid, l.comp.Ratio, 0, s.Lens)
	logits := make([]float32, tokens*s.Width)
	if err == nil {
		err = indexer.QueryQuantRef(rowsOf(h, l.iq, sparseIndexHeads*128, 0), sparseIndexHeads, h.positions, rowsOf(h, l.weights, sparseIndexHeads, 0),
			l.cosSin, indexer.QueryQuantConfig{Format: l.format, Hadamard: l.hadamard}, s.Q, s.QScale, s.Weights)
	}
	if err == nil {
		err = indexer.LogitsRef(s, logits)
	}
	if err != nil {
		t.Fatal(err)
	}
	return indexer.TopKRef(logits, s.Width, s.Lens, sparseTopK)
}

func firstDifference(a, b []byte) int {
	for i := range b {
		if i >= len(a) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

// A layer of every kind over two sequences that come in chunks, against the
// references, with every variant of the attention.
func TestSparse(t *testing.T) {
	dev := testkit.Device(t)
	for _, c := range sparseCases {
		for i, variant := range variants(t, dev, sparseHeads) {
			t.Run(c.name+"/"+variant, func(t *testing.T) {
				switch {
				case i > 0 && testing.Short():
					t.Skip("one variant runs")
				case c.format == cache.IndexKeyMXFP4 && strings.HasPrefix(variant, attention.TwoPassPrefix):
					t.Skip("how keys are stored is nothing to the attention")
				}
				l := newSparseLayer(t, c)
				tokens, steps := inChunks()
				l.reference(t, tokens, steps, l.device(t, dev, tokens, steps, variant), variant)
			})
		}
	}
}

// How sequences are divided into steps changes no byte of a cache and no pick. With
// one token at a time, outputs are held against the references, too.
func TestSparseDivision(t *testing.T) {
	dev := testkit.Device(t)
	for _, c := range sparseCases {
		t.Run(c.name, func(t *testing.T) {
			l := newSparseLayer(t, c)
			tokens, steps := inChunks()
			chunks := l.device(t, dev, tokens, steps, "")
			tokens, steps = oneByOne()
			ones := l.device(t, dev, tokens, steps, "")
			for i := range pools {
				if at := firstDifference(ones.pools[i], chunks.pools[i]); at >= 0 {
					t.Errorf("pool %d: byte %d of page %d differs", i, at%l.strides[i], at/l.strides[i])
				}
			}
			if !slices.Equal(ones.topk[0], chunks.topk[0]) || !slices.Equal(ones.topk[1], chunks.topk[1]) {
				t.Error("other picks")
			}
			if !testing.Short() {
				d := must[*pipeline.Decode](t)(pipeline.NewDecode(dev, pipeline.DecodeConfig{Tokens: 1, Heads: sparseHeads, Ratio: pipeline.RatioWindow, WindowCache: l.cfg.WindowCache}))
				defer d.Close()
				l.reference(t, tokens, steps, ones, d.Variant())
			}
		})
	}
}

// Mistakes give a typed error and leave nothing recorded.
func TestSparseArguments(t *testing.T) {
	dev := testkit.Device(t)
	l := newSparseLayer(t, sparseCases[1])
	for name, change := range map[string]func(*pipeline.SparseConfig){
		"tokens":      func(c *pipeline.SparseConfig) { c.Tokens = 0 },
		"index heads": func(c *pipeline.SparseConfig) { c.IndexHeads = indexer.MaxHeads + 1 },
		"top-k":       func(c *pipeline.SparseConfig) { c.TopK = indexer.MaxK + 1 },
		"state":       func(c *pipeline.SparseConfig) { c.State = cache.StateCache{} },
		"keys":        func(c *pipeline.SparseConfig) { c.Keys = cache.IndexKeyCache{} },
		"index state": func(c *pipeline.SparseConfig) { c.IndexState = cache.StateCache{} },
		"group":       func(c *pipeline.SparseConfig) { c.Group = -1 },
		"eps":         func(c *pipeline.SparseConfig) { c.Eps = float32(math.NaN()) },
	} {
		cfg := l.cfg
		cfg.Tokens = 2
		change(&cfg)
		if s, err := pipeline.NewSparse(dev, cfg); !errors.Is(err, vk.ErrArgument) {
			s.Close()
			t.Errorf("%s: %v, want ErrArgument", name, err)
		}
	}
	cfg := l.cfg
	cfg.Tokens = 2
	s := must[*pipeline.Sparse](t)(pipeline.NewSparse(dev, cfg))
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	if err := s.RecordStep(rec, pipeline.SparseStepArgs{}); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("empty step: %v", err)
	}
	if err := s.RecordLayer(rec, pipeline.SparseStepArgs{}, pipeline.SparseLayerArgs{}); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("empty layer: %v", err)
	}
	if err := s.RecordLayer(rec, pipeline.SparseStepArgs{}, pipeline.SparseLayerArgs{LayerArgs: pipeline.LayerArgs{TopK: s.TopK()}}); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("picks from elsewhere: %v", err)
	}
	if err := s.RecordStep(nil, pipeline.SparseStepArgs{}); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("no recorder: %v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if err := s.RecordStep(rec, pipeline.SparseStepArgs{}); !errors.Is(err, vk.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	var none *pipeline.Sparse
	if err := none.RecordLayer(rec, pipeline.SparseStepArgs{}, pipeline.SparseLayerArgs{}); !errors.Is(err, vk.ErrClosed) {
		t.Errorf("nil: %v", err)
	}
}
