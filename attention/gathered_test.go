package attention_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// prompt is a step of several requests with paged caches, in host memory.
type prompt struct {
	step
	rows           attention.RowConfig
	list           []asked
	topk           []int32 // nil where all entries are attended
	positions      []int32
	winTab, entTab attention.Table
}

// paged fills pages of requests at random places of a pool that is poison elsewhere.
func paged(t *testing.T, rng *rand.Rand, page, requests, length int) (attention.Table, []byte, cache.Layout) {
	l := must[cache.Layout](t)(cache.NewLayout(page, 0))
	w := (length + page - 1) / page
	tab := attention.Table{R: requests, W: w, Page: page}
	pages := requests*w + 3
	pool := slices.Repeat([]byte{0xFF}, l.Stride*pages)
	for _, id := range rng.Perm(pages)[:requests*w] {
		tab.Blocks = append(tab.Blocks, int32(id))
	}
	var slots []int64
	for r := range requests {
		for i := range length {
			slots = append(slots, int64(tab.Slot(int32(r), i)))
		}
	}
	require.NoError(t, cache.InsertRef(pool, l, normal(rng, len(slots)*cache.D), slots))
	return tab, pool, l
}

func newPrompt(t *testing.T, rng *rand.Rand, heads int, rows attention.RowConfig, list []asked) *prompt {
	const padding = 2
	longest, tables := 0, 0
	p := &prompt{rows: rows, list: list}
	for _, x := range list {
		longest, tables = max(longest, x.length), max(tables, x.table+1)
	}
	p.heads = heads
	p.win, p.comp = &attention.Slots{Width: rows.Window}, nil
	p.winTab, p.win.Pool, p.win.Layout = paged(t, rng, 4, tables, longest)
	if rows.Ratio > 0 {
		p.comp = &attention.Slots{Width: rows.Width}
		p.entTab, p.comp.Pool, p.comp.Layout = paged(t, rng, 2, tables, longest/rows.Ratio+1)
	}
	for _, x := range list {
		for pos := x.length - x.n; pos < x.length; pos++ {
			p.token(rng, int32(x.table), pos)
		}
	}
	for range padding {
		p.positions = append(p.positions, 0)
		p.win.Indices, p.win.Lens = append(p.win.Indices, make([]int32, rows.Window)...), append(p.win.Lens, 0)
		if p.comp != nil {
			p.comp.Indices, p.comp.Lens = append(p.comp.Indices, make([]int32, rows.Width)...), append(p.comp.Lens, 0)
			p.topk = append(p.topk, make([]int32, rows.Width)...)
		}
	}
	if !rows.Picks {
		p.topk = nil
	}
	p.q, p.sink = normal(rng, len(p.positions)*heads*cache.D), make([]float32, heads)
	return p
}

// token appends the lists of a token.
func (p *prompt) token(rng *rand.Rand, request int32, pos int) {
	p.positions = append(p.positions, int32(pos))
	first := max(0, pos-p.rows.Window+1)
	for j := range p.rows.Window {
		p.win.Indices = append(p.win.Indices, p.winTab.Slot(request, min(first+j, pos)))
	}
	p.win.Lens = append(p.win.Lens, int32(pos-first+1))
	if p.comp == nil {
		return
	}
	seen := (pos + 1) / p.rows.Ratio
	picks := rng.Perm(max(seen, 1))[:min(seen, p.rows.Width)]
	if slices.Sort(picks); !p.rows.Picks {
		for i := range picks {
			picks[i] = i
		}
	}
	for j := range p.rows.Width {
		e, slot := int32(-1), int32(-1)
		if j < len(picks) {
			e, slot = int32(picks[j]), p.entTab.Slot(request, picks[j])
		}
		p.topk, p.comp.Indices = append(p.topk, e), append(p.comp.Indices, slot)
	}
	p.comp.Lens = append(p.comp.Lens, int32(len(picks)))
}

// gathered runs the step in pieces of the room that rows have, and returns their number.
func (p *prompt) gathered(t *testing.T, dev *vk.Device, variant string, splits int,
	rows attention.RowConfig) (out []uint16, lse []float32, pieces int) {
	t.Helper()
	cfg := attention.GatheredConfig{Heads: p.heads, WindowPage: p.win.Layout.Page, Rows: rows, Variant: variant, Splits: splits}
	if p.comp != nil {
		cfg.CompressedPage = p.comp.Layout.Page
	}
	op := must[*attention.Gathered](t)(attention.NewGathered(dev, cfg))
	tokens := len(p.positions)
	plan := planOf(rows, tokens, p.list)
	pieces = plan.Pieces()
	plan.Pad(pieces + pieces%2)
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	flat := func(list [][4]int32, shape ...int) tensor.Tensor {
		return r.In(vectors.FromI32(slices.Concat(func() (all [][]int32) {
			for i := range list {
				all = append(all, list[i][:])
			}
			return all
		}()...), shape...), tensor.I32)
	}
	a := attention.GatheredArgs{
		Q:         r.In(vectors.FromU16(p.q, tokens, p.heads, cache.D), tensor.BF16),
		Positions: r.In(vectors.FromI32(p.positions, tokens), tensor.I32),
		Plan: attention.PlanTensors{Places: flat(plan.Places, tokens, 4), Heads: flat(plan.Heads, len(plan.Heads), 2, 2),
			Runs: flat(plan.Runs, len(plan.Runs), 4)},
		Workspace: r.Out(tensor.BF16, rows.Rows(), cache.D), Pieces: len(plan.Heads),
		Sink: r.In(vectors.FromF32(p.sink, p.heads), tensor.F32),
		Out:  r.Out(tensor.BF16, tokens, p.heads, cache.D), LSE: r.Out(tensor.F32, tokens, p.heads),
		Scratch: scratch(r, op.ScratchBytes(tokens)),
	}
	table := func(x attention.Table) tensor.Tensor { return r.In(vectors.FromI32(x.Blocks, x.R, x.W), tensor.I32) }
	a.Window = attention.PagedRows{Cache: slotSet(r, p.win).Cache, Table: table(p.winTab)}
	if p.comp != nil {
		set := slotSet(r, p.comp)
		a.Compressed, a.Slots = attention.PagedRows{Cache: set.Cache, Table: table(p.entTab)}, set.Indices
	}
	if p.topk != nil {
		a.TopK = r.In(vectors.FromI32(p.topk, tokens, rows.Width), tensor.I32)
	}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out, "lse": a.LSE}))
	return got["out"].U16(), got["lse"].F32(), pieces
}

// promptCases are mixed steps of layers of each kind.
var promptCases = []struct {
	name string
	rows attention.RowConfig
}{
	{"window", attention.RowConfig{Window: 9}},
	{"picks", attention.RowConfig{Window: 9, Ratio: 4, Width: 5, Picks: true}},
	{"all entries", attention.RowConfig{Window: 9, Ratio: 8, Width: 32}},
}

// Chunks of requests of all lengths give what the reference computes, in a workspace for all of
// them at once and in ones so small that a long request, or many requests, or both go in pieces.
func TestGathered(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	list := []asked{{0, 23, 151}, {2, 1, 140}, {3, 3, 3}, {5, 14, 40}, {6, 1, 5}}
	const heads = 5
	for _, c := range promptCases {
		p := newPrompt(t, rng, heads, c.rows, list)
		want, wantLSE, err := attention.DecodeRef(p.q, heads, p.win, p.comp, p.sink, attention.DefaultScale)
		require.NoError(t, err)
		least := c.rows.LeastRows()
		for _, v := range opkit.Builds("attn_prefill") {
			if testkit.LeftOut(v.Name) || attention.CanDecode(dev.Adapter(), opkit.TwoPass+v.Name, heads) != nil {
				continue
			}
			for i, room := range []int{1 << 12, 3 * least, least} {
				t.Run(subtest(c.name, v.Name, room), func(t *testing.T) {
					rows := c.rows.Divide(uint64(room)*1024, len(p.positions), len(list), 160)
					out, lse, pieces := p.gathered(t, dev, v.Name, i, rows)
					assert.Equal(t, i == 0, pieces == 1, "%d pieces", pieces)
					r := verify.NewComparison(verify.ClassTolerance).
						CloseWeighted("out", vectors.FromU16(out, len(out)), vectors.FromF32(want, len(want)), verify.DecodeOut,
							sides(v.Name), func() ([]float32, error) {
								return attention.DecodeSpreadRef(p.q, heads, p.win, p.comp, p.sink, attention.DefaultScale)
							}).
						Close("lse", vectors.FromF32(lse, len(lse)), vectors.FromF32(wantLSE, len(wantLSE)), verify.DecodeLSE).Result()
					assert.True(t, r.Pass, r.Detail)
				})
			}
		}
	}
}

// Enough heads that the kernels in lanes are taken where lanes are known, in one piece and several.
func TestGatheredManyHeads(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	c := promptCases[1].rows
	p := newPrompt(t, rng, 33, c, []asked{{0, 3, 70}, {1, 1, 30}})
	for _, v := range opkit.Builds("attn_prefill") {
		if testkit.LeftOut(v.Name) || attention.CanDecode(dev.Adapter(), opkit.TwoPass+v.Name, p.heads) != nil {
			continue
		}
		for _, room := range []int{1 << 10, c.LeastRows()} {
			t.Run(subtest(v.Name, room), func(t *testing.T) {
				out, lse, _ := p.gathered(t, dev, v.Name, 1, c.Divide(uint64(room)*1024, len(p.positions), 2, 80))
				p.check(t, v.Name, out, lse)
			})
		}
	}
}

func TestGatheredArguments(t *testing.T) {
	dev := testkit.Device(t)
	rows := attention.RowConfig{Window: 8, Ratio: 4, Width: 4, Entries: 16, Windows: 16}
	good := attention.GatheredConfig{Heads: 2, WindowPage: 4, CompressedPage: 2, Rows: rows, Variant: opkit.Base}
	for name, change := range map[string]func(*attention.GatheredConfig){
		"heads":            func(c *attention.GatheredConfig) { c.Heads = 0 },
		"window page":      func(c *attention.GatheredConfig) { c.WindowPage = 0 },
		"no entries' page": func(c *attention.GatheredConfig) { c.CompressedPage = 0 },
		"no ratio":         func(c *attention.GatheredConfig) { c.Rows.Ratio = 0 },
		"no window":        func(c *attention.GatheredConfig) { c.Rows.Window = 0 },
		"room":             func(c *attention.GatheredConfig) { c.Rows.Windows = 7 },
		"entries' room":    func(c *attention.GatheredConfig) { c.Rows.Entries = 3 },
		"variant":          func(c *attention.GatheredConfig) { c.Variant = "fast" },
	} {
		c := good
		change(&c)
		_, err := attention.NewGathered(dev, c)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*attention.Gathered](t)(attention.NewGathered(dev, good))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	kv := func(page int) cache.KVCache {
		l := must[cache.Layout](t)(cache.NewLayout(page, 0))
		return cache.KVCache{Pool: r.Out(tensor.U8, 3, l.Stride), Layout: l}
	}
	args := attention.GatheredArgs{Q: r.Out(tensor.BF16, 3, 2, cache.D), Out: r.Out(tensor.BF16, 3, 2, cache.D),
		Window:     attention.PagedRows{Cache: kv(4), Table: r.Out(tensor.I32, 1, 3)},
		Compressed: attention.PagedRows{Cache: kv(2), Table: r.Out(tensor.I32, 1, 3)},
		Slots:      r.Out(tensor.I32, 3, 4), TopK: r.Out(tensor.I32, 3, 4), Positions: r.Out(tensor.I32, 3),
		Plan: attention.PlanTensors{Places: r.Out(tensor.I32, 3, 4), Heads: r.Out(tensor.I32, 2, 2, 2),
			Runs: r.Out(tensor.I32, 12, 4)},
		Workspace: r.Out(tensor.BF16, 32, cache.D), Scratch: scratch(r, op.ScratchBytes(3)), Pieces: 2}
	require.NoError(t, r.Err())
	for name, change := range map[string]func(*attention.GatheredArgs){
		"Plan.Heads":        func(a *attention.GatheredArgs) { a.Plan.Heads.Shape = []int{4, 2} },
		"Workspace":         func(a *attention.GatheredArgs) { a.Workspace = a.Workspace.Rows(0, 31) },
		"TopK":              func(a *attention.GatheredArgs) { a.TopK.Shape = []int{4, 3} },
		"Pieces":            func(a *attention.GatheredArgs) { a.Pieces = 3 },
		"Scratch":           func(a *attention.GatheredArgs) { a.Scratch.Size = 16 },
		"Page":              func(a *attention.GatheredArgs) { a.Compressed.Cache = cache.KVCache{} },
		"Cache.Layout.Page": func(a *attention.GatheredArgs) { a.Compressed.Cache = a.Window.Cache },
	} {
		a := args
		change(&a)
		refuses(t, dev, name, func(rec *vk.Recorder) error { return op.Record(rec, a) })
	}
}
