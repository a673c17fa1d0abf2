package pipeline_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Short names of what the test kit has.
var (
	normal   = testkit.Normal
	variants = testkit.DecodeVariants
)

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

func put[T any](t testing.TB, x tensor.Tensor, v []T) {
	t.Helper()
	testkit.Put(t, x, v)
}

// shape is what a recording fixes.
type shape struct {
	ratio, tokens, heads, requests int
	window, topK, maxLen           int
	win, comp                      cache.Layout
	winWidth, compWidth            int // of the block tables
	winPages, compPages            int // of the pools
}

// newShape fills in what follows: tables that are long enough for sequences of
// maxLen tokens, and pools that have pages to spare.
func newShape(t testing.TB, ratio, tokens, heads, requests, maxLen int) shape {
	l := func(page, extra int) cache.Layout {
		return must[cache.Layout](t)(cache.NewLayout(page, cache.DefaultStride(page)+extra))
	}
	s := shape{ratio: ratio, tokens: tokens, heads: heads, requests: requests, window: 128, topK: 40, maxLen: maxLen, win: l(64, 0), comp: l(64, 8)}
	if ratio == pipeline.RatioC128A {
		s.comp = l(2, 0)
	}
	s.size()
	return s
}

func (s *shape) size() {
	s.winWidth = s.maxLen/s.win.Page + 2
	s.winPages = s.requests*((s.window+s.tokens)/s.win.Page+2) + 3
	s.compWidth = s.maxLen/s.ratio/s.comp.Page + 2
	s.compPages = s.requests*s.compWidth + 3
}

func (s shape) config(variant string) pipeline.DecodeConfig {
	cfg := pipeline.DecodeConfig{Tokens: s.tokens, Heads: s.heads, Ratio: s.ratio, Window: s.window, Variant: variant}
	cfg.WindowCache.Layout = s.win
	switch s.ratio {
	case pipeline.RatioC4A:
		cfg.TopK, cfg.CompressedCache.Layout = s.topK, s.comp
	case pipeline.RatioC128A:
		cfg.MaxLen, cfg.CompressedCache.Layout = s.maxLen, s.comp
	}
	return cfg
}

// request is a sequence of length tokens, the last of which are new in a step.
type request struct{ length, tokens int }

// step is what the layers of a step share, in host memory.
type step struct {
	queryStart, seqLens, tokenToReq, positions, winTable, compTable []int32
	valid                                                           []byte
}

// newStep lays the sequences out over random pages. What fell out of the window, a
// page of compressed entries here and there, and the rest of the tables are -1.
func newStep(rng *rand.Rand, s shape, reqs []request) step {
	x := step{
		queryStart: []int32{0}, winTable: filled(s.requests*s.winWidth, int32(-1)), compTable: filled(s.requests*s.compWidth, int32(-1)),
		tokenToReq: filled(s.tokens, int32(0)), positions: filled(s.tokens, int32(0)), valid: make([]byte, s.tokens),
	}
	winPages, compPages, at := rng.Perm(s.winPages), rng.Perm(s.compPages), 0
	take := func(pages *[]int) int32 {
		p := (*pages)[0]
		*pages = (*pages)[1:]
		return int32(p)
	}
	for r, q := range reqs {
		first := q.length - q.tokens
		for i := range q.tokens {
			x.tokenToReq[at], x.positions[at], x.valid[at] = int32(r), int32(first+i), 1
			at++
		}
		x.queryStart, x.seqLens = append(x.queryStart, int32(at)), append(x.seqLens, int32(q.length))
		if q.tokens == 0 {
			continue
		}
		for c := max(first-s.window+1, 0) / s.win.Page; c <= (q.length-1)/s.win.Page; c++ {
			x.winTable[r*s.winWidth+c] = take(&winPages)
		}
		for c := range (q.length/s.ratio + s.comp.Page - 1) / s.comp.Page {
			if page := take(&compPages); rng.IntN(4) > 0 {
				x.compTable[r*s.compWidth+c] = page
			}
		}
	}
	for i := at; i < s.tokens; i++ { // what padding says besides does not count
		x.tokenToReq[i], x.positions[i] = int32(rng.IntN(s.requests)), int32(rng.IntN(s.maxLen))
	}
	return x
}

func (x step) tables(s shape) (win, comp attention.Table) {
	return attention.Table{Blocks: x.winTable, R: s.requests, W: s.winWidth, Page: s.win.Page},
		attention.Table{Blocks: x.compTable, R: s.requests, W: s.compWidth, Page: s.comp.Page}
}

// layer is one layer's input in host memory; the pools are those before the step.
type layer struct {
	q, kv     []uint16
	picks     []int32
	sink      []float32
	win, comp []byte
}

// newLayer fills the rows that the step may read, of pools that are poison
// everywhere else, as the inputs of padding tokens are.
func newLayer(t testing.TB, rng *rand.Rand, s shape, x step) layer {
	l := layer{
		q: normal(rng, s.tokens*s.heads*attention.D), kv: normal(rng, s.tokens*attention.D), picks: filled(s.tokens*s.topK, int32(-1)),
		win: filled(int(s.win.PoolBytes(s.winPages)), byte(0xFF)), comp: filled(int(s.comp.PoolBytes(s.compPages)), byte(0xFF)),
	}
	for h := range s.heads {
		l.sink = append(l.sink, []float32{float32(math.Inf(-1)), 0, 2, float32(math.Inf(1)), -3}[h%5])
	}
	winTable, compTable := x.tables(s)
	var winSlots, compSlots []int64
	for r := range s.requests {
		n := int(x.queryStart[r+1] - x.queryStart[r])
		if n == 0 {
			continue
		}
		first := int(x.seqLens[r]) - n
		for p := max(first-s.window+1, 0); p < first; p++ {
			winSlots = append(winSlots, int64(winTable.Slot(int32(r), p)))
		}
		for e := range int(x.seqLens[r]) / s.ratio {
			compSlots = append(compSlots, int64(compTable.Slot(int32(r), e)))
		}
	}
	for _, p := range []struct {
		pool   []byte
		layout cache.Layout
		slots  []int64
	}{{l.win, s.win, winSlots}, {l.comp, s.comp, compSlots}} {
		if err := cache.InsertRef(p.pool, p.layout, normal(rng, len(p.slots)*attention.D), p.slots); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s.tokens {
		if x.valid[i] == 0 {
			copy(l.q[i*s.heads*attention.D:(i+1)*s.heads*attention.D], filled(s.heads*attention.D, uint16(0xFFFF)))
			copy(l.kv[i*attention.D:(i+1)*attention.D], filled(attention.D, uint16(0xFFFF)))
			l.picks[i*s.topK] = int32(rng.IntN(s.maxLen))
			continue
		}
		row := l.picks[i*s.topK : (i+1)*s.topK]
		for j, e := range rng.Perm(int(x.positions[i]+1) / s.ratio)[:min(int(x.positions[i]+1)/s.ratio, s.topK)] {
			row[j] = int32(e)
		}
		if i%3 == 1 {
			row[0] = int32(s.compWidth*s.comp.Page + i) // beyond the table
		}
	}
	return l
}

// result is what a layer of a step has to give.
type result struct {
	win, comp         *attention.Slots // index lists, and the caches after the step
	winLens, compLens []int32
	out, lse          []float32
	spread            func() ([]float32, error)
}

// expect computes a step with the references.
func expect(t testing.TB, s shape, x step, l layer) result {
	t.Helper()
	winTable, compTable := x.tables(s)
	slots := make([]int64, s.tokens)
	if err := cache.SlotMappingRef(slots, x.queryStart, x.seqLens, x.winTable, s.winWidth, s.win.Page, 1); err != nil {
		t.Fatal(err)
	}
	win := &attention.Slots{Pool: bytes.Clone(l.win), Layout: s.win, Width: s.window, Indices: make([]int32, s.tokens*s.window), Lens: make([]int32, s.tokens)}
	if err := cache.InsertRef(win.Pool, s.win, l.kv, slots); err != nil {
		t.Fatal(err)
	}
	attention.WindowIndicesRef(s.tokens, s.window, x.queryStart, x.seqLens, x.tokenToReq, x.valid, winTable, win.Indices, win.Lens)
	r := result{win: win, winLens: win.Lens}
	if s.ratio != pipeline.RatioWindow {
		comp := &attention.Slots{Pool: l.comp, Layout: s.comp, Width: s.topK}
		if s.ratio == pipeline.RatioC4A {
			comp.Indices, comp.Lens = attention.GlobalTopKRef(l.picks, s.topK, x.tokenToReq, compTable, x.valid)
		} else {
			comp.Width = attention.C128Width(s.maxLen, s.ratio)
			comp.Indices, comp.Lens = attention.C128IndicesRef(x.positions, s.ratio, comp.Width, slots, x.tokenToReq, &compTable)
		}
		r.comp, r.compLens = comp, comp.Lens
	}
	var err error
	if r.out, r.lse, err = attention.DecodeRef(l.q, s.heads, r.win, r.comp, l.sink, attention.DefaultScale); err != nil {
		t.Fatal(err)
	}
	r.spread = func() ([]float32, error) {
		return attention.DecodeSpreadRef(l.q, s.heads, r.win, r.comp, l.sink, attention.DefaultScale)
	}
	return r
}

// gpu is the device memory of a recording, each tensor between guard bytes.
type gpu struct {
	t      testing.TB
	s      shape
	r      *verify.Rig
	step   pipeline.StepArgs
	layers []pipeline.LayerArgs
}

func newGPU(t testing.TB, dev *vk.Device, s shape, layers int) *gpu {
	t.Helper()
	r := verify.NewRig(t.Context(), dev)
	t.Cleanup(r.Close)
	g := &gpu{t: t, s: s, r: r, step: pipeline.StepArgs{
		QueryStart: r.Out(tensor.I32, s.requests+1), SeqLens: r.Out(tensor.I32, s.requests),
		TokenToReq: r.Out(tensor.I32, s.tokens), Positions: r.Out(tensor.I32, s.tokens), IsValid: r.Out(tensor.U8, s.tokens),
		WindowTable: r.Out(tensor.I32, s.requests, s.winWidth), CompressedTable: r.Out(tensor.I32, s.requests, s.compWidth),
	}}
	for range layers {
		g.layers = append(g.layers, pipeline.LayerArgs{
			Q: r.Out(tensor.BF16, s.tokens, s.heads, attention.D), KV: r.Out(tensor.BF16, s.tokens, attention.D), TopK: r.Out(tensor.I32, s.tokens, s.topK),
			Sink:       r.Out(tensor.F32, s.heads),
			Window:     cache.KVCache{Pool: r.Out(tensor.U8, s.winPages, s.win.Stride), Layout: s.win},
			Compressed: cache.KVCache{Pool: r.Out(tensor.U8, s.compPages, s.comp.Stride), Layout: s.comp},
			Out:        r.Out(tensor.BF16, s.tokens, s.heads, attention.D), LSE: r.Out(tensor.F32, s.tokens, s.heads),
		})
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	return g
}

// upload writes a step and its layers, and poison where results will be.
func (g *gpu) upload(x step, layers ...layer) {
	g.t.Helper()
	put(g.t, g.step.QueryStart, x.queryStart)
	put(g.t, g.step.SeqLens, x.seqLens)
	put(g.t, g.step.TokenToReq, x.tokenToReq)
	put(g.t, g.step.Positions, x.positions)
	put(g.t, g.step.IsValid, x.valid)
	put(g.t, g.step.WindowTable, x.winTable)
	put(g.t, g.step.CompressedTable, x.compTable)
	for i, l := range layers {
		a := g.layers[i]
		put(g.t, a.Q, l.q)
		put(g.t, a.KV, l.kv)
		put(g.t, a.TopK, l.picks)
		if !a.Sink.IsZero() {
			put(g.t, a.Sink, l.sink)
		}
		put(g.t, a.Window.Pool, l.win)
		put(g.t, a.Compressed.Pool, l.comp)
		put(g.t, a.Out, filled(a.Out.Len(), uint16(0xFFFF)))
		if !a.LSE.IsZero() {
			put(g.t, a.LSE, filled(a.LSE.Len(), uint32(0xFFFFFFFF)))
		}
	}
}

// record records the step and all layers.
func (g *gpu) record(dev *vk.Device, d *pipeline.Decode) *vk.Commands {
	g.t.Helper()
	rec := must[*vk.Recorder](g.t)(dev.NewRecorder())
	defer rec.Close()
	if err := d.RecordStep(rec, g.step); err != nil {
		g.t.Fatal(err)
	}
	for _, a := range g.layers {
		if err := d.RecordLayer(rec, g.step, a); err != nil {
			g.t.Fatal(err)
		}
	}
	cmd := must[*vk.Commands](g.t)(rec.End())
	g.t.Cleanup(func() { cmd.Close() })
	return cmd
}

// check holds the results of a layer against what is wanted: the attention within
// its tolerance, both caches byte for byte. A layer without sink or LSE leaves them
// out.
func (g *gpu) check(variant string, i int, x step, want result) {
	g.t.Helper()
	s, a := g.s, g.layers[i]
	outputs := map[string]tensor.Tensor{"out": a.Out, "lse": a.LSE, "win": a.Window.Pool, "comp": a.Compressed.Pool}
	got := must[verify.Arrays](g.t)(g.r.Results(outputs))
	comp := got["comp"]
	if want.comp != nil {
		comp = vectors.FromU8(want.comp.Pool, s.compPages, s.comp.Stride)
	}
	sides := 0
	if verify.RoundsWeights(variant) {
		sides = 1
	}
	c := verify.NewComparison(verify.ClassTolerance).
		CloseWeighted("out", got["out"], vectors.FromF32(want.out, s.tokens, s.heads, attention.D), verify.DecodeOut, sides, want.spread).
		Exact("window cache", got["win"], vectors.FromU8(want.win.Pool, s.winPages, s.win.Stride)).
		Exact("compressed cache", got["comp"], comp)
	if !a.LSE.IsZero() {
		c.Close("lse", got["lse"], vectors.FromF32(want.lse, s.tokens, s.heads), verify.DecodeLSE)
	}
	if r := c.Result(); !r.Pass {
		g.t.Errorf("layer %d: %s", i, r.Detail)
	}
	per := s.heads * attention.D
	for t, v := range x.valid {
		if v == 0 && !bytes.Equal(got["out"].Data[2*t*per:2*(t+1)*per], make([]byte, 2*per)) {
			g.t.Errorf("layer %d: the output of padding token %d is not 0", i, t)
		}
	}
}

// checkIndices compares the index lists of the valid tokens.
func (g *gpu) checkIndices(d *pipeline.Decode, x step, want result) {
	g.t.Helper()
	win, winLens, comp, compLens := d.Indices()
	compare := func(name string, list, lens tensor.Tensor, want *attention.Slots) {
		gotList, gotLens := g.i32(list), g.i32(lens)
		c := verify.NewComparison(verify.ClassExact).Exact(name+" lengths", gotLens, vectors.FromI32(want.Lens, g.s.tokens))
		w := want.Width
		for t, v := range x.valid {
			if v != 0 {
				c.Exact(name+" slots", vectors.FromI32(gotList.I32()[t*w:(t+1)*w], w), vectors.FromI32(want.Indices[t*w:(t+1)*w], w))
			}
		}
		if r := c.Result(); !r.Pass {
			g.t.Error(r.Detail)
		}
	}
	compare("window", win, winLens, want.win)
	if want.comp != nil {
		compare("compressed", comp, compLens, want.comp)
	} else if !comp.IsZero() || !compLens.IsZero() {
		g.t.Error("a window-only Decode has lists of compressed slots")
	}
}

func (g *gpu) i32(x tensor.Tensor) vectors.Array {
	a := vectors.New(vectors.I32, x.Shape...)
	if err := x.Download(g.t.Context(), a.Data); err != nil {
		g.t.Fatal(err)
	}
	return a
}

func filled[T any](n int, v T) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = v
	}
	return s
}

func bf16(values []float32) []byte {
	var data []byte
	for _, v := range values {
		b := numfmt.BF16Encode(v)
		data = append(data, byte(b), byte(b>>8))
	}
	return data
}

func floats(v []uint16) []float32 {
	f := make([]float32, len(v))
	for i := range v {
		f[i] = numfmt.BF16Decode(v[i])
	}
	return f
}

func fake(t testing.TB, o fakemodel.Options) *fakemodel.Model {
	t.Helper()
	if o.Config.Layers == nil {
		o.Config = fakemodel.Config(1, 4, 128)
	}
	return must[*fakemodel.Model](t)(fakemodel.New(o))
}

// openFake writes a model and opens it.
func openFake(t testing.TB, m *fakemodel.Model, shards int, o model.CheckpointOptions) (*model.Checkpoint, error) {
	t.Helper()
	dir := t.TempDir()
	if err := m.Write(dir, shards); err != nil {
		t.Fatal(err)
	}
	c, err := model.Open(dir, o)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}
