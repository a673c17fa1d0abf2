package bench

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

var smallLayer = LayerOptions{Models: []string{"small"}, Batches: []int{3}, Contexts: []int{700}, Prefill: []int{150}, Chunk: 100, Common: quick}

func TestLayerRows(t *testing.T) {
	long(t)
	for weights, of := range map[string]struct {
		kinds   []string
		prefill []int
		rows    int
	}{"fp8": {nil, []int{150}, 9}, "bf16": {[]string{"c4a"}, nil, 1}, "nvfp4": {[]string{"c4a"}, nil, 1}} {
		o := smallLayer
		o.Weights, o.Kinds, o.Prefill, o.Reps, o.Checked = []string{weights}, of.kinds, of.prefill, 1, true
		rows := 0
		require.NoError(t, Layers(t.Context(), testkit.Device(t), o, anyLimits, silent{}, func(r LayerRow) {
			rows++
			assert.Equal(t, "ok", r.Status, "%+v", r)
			assert.NotEmpty(t, r.Variant)
			assert.Greater(t, len(r.Ops), 6, r.title())
			for _, v := range []float64{r.Bound, r.Time.Median, r.Limit, r.Share, float64(r.Memory["weights"])} {
				assert.Positive(t, v, "%+v", r)
			}
			for _, op := range r.Ops {
				assert.Positive(t, op.Time.Median, "%s: %+v", r.title(), op)
				assert.Positive(t, op.Dispatches, "%s: %+v", r.title(), op)
				if !strings.HasSuffix(op.Name, "compress") { // where no entry is complete
					assert.Positive(t, op.Work.Bytes(), "%s: %+v", r.title(), op)
				}
			}
		}))
		assert.Equal(t, of.rows, rows, weights)
	}
}

// A layer that drafts is timed with blocks, others with the tokens that a step verifies.
func TestLayerRowsDrafts(t *testing.T) {
	long(t)
	o := smallLayer
	o.Models, o.Kinds, o.Batches, o.Contexts, o.Prefill = []string{"v41-small+2"}, []string{"window", "draft"}, []int{2}, []int{90}, nil
	o.Reps, o.Checked = 1, true
	tokens := map[string]int{}
	require.NoError(t, Layers(t.Context(), testkit.Device(t), o, anyLimits, silent{}, func(r LayerRow) {
		assert.Equal(t, []any{"ok", "decode", 2, 90}, []any{r.Status, r.Mode, r.Batch, r.Context}, "%+v", r)
		tokens[r.Kind] = r.Tokens
		for _, op := range r.Ops {
			assert.Positive(t, op.Work.Bytes(), "%s: %+v", r.title(), op)
		}
	}))
	assert.Equal(t, map[string]int{"window": 6, "draft": 10}, tokens)
}

// Layers that differ in any of their weights are not taken for the same. The kernels are right,
// so the second run gets the weights of another layer.
func TestWrongLayersAreSeen(t *testing.T) {
	long(t)
	dev, ctx := testkit.Device(t), context.Background()
	c := modelConfig("small")
	maker := newWeightMaker(ctx, dev, 1)
	defer maker.Close()
	var sets []*randomLayer
	for range 2 {
		w, err := maker.layer(c, layerOf(c, "c4a"), projection.FormatFP8)
		require.NoError(t, err)
		defer w.Close()
		sets = append(sets, w)
	}
	// All entries are the step's own, twice as many as are picked, and half of what is attended:
	// what makes and picks them matters.
	const tokens = 128
	c.TopK, c.Window = tokens/8, tokens/8
	r := engineRun{ctx: ctx, dev: dev, p: silent{}, seed: 1, cfg: onlyLayers(c, layerOf(c, "c4a")), longest: tokens,
		shape: stepShape{lens: []int{tokens}, news: []int{tokens}}}
	for name, spoil := range map[string]func(w *model.DeviceLayer){
		"":               func(*model.DeviceLayer) {},
		"qkv":            func(w *model.DeviceLayer) { w.QKV = sets[1].QKV },
		"qb":             func(w *model.DeviceLayer) { w.QB = sets[1].QB },
		"oa":             func(w *model.DeviceLayer) { w.OA = sets[1].OA },
		"ob":             func(w *model.DeviceLayer) { w.OB = sets[1].OB },
		"q norm":         func(w *model.DeviceLayer) { w.QNorm = scattered(t, w.QNorm, 4) },
		"kv norm":        func(w *model.DeviceLayer) { w.KVNorm = scattered(t, w.KVNorm, 4) },
		"sink":           func(w *model.DeviceLayer) { w.Sink = scattered(t, w.Sink, 16) },
		"index queries":  func(w *model.DeviceLayer) { x := *w.Indexer; x.QB = sets[1].Indexer.QB; w.Indexer = &x },
		"index weights":  func(w *model.DeviceLayer) { x := *w.Indexer; x.Weights = sets[1].Indexer.Weights; w.Indexer = &x },
		"index entries":  func(w *model.DeviceLayer) { x := *w.Indexer; x.Compressor = sets[1].Indexer.Compressor; w.Indexer = &x },
		"entries' norm":  func(w *model.DeviceLayer) { x := *w.Compressor; x.Norm = scattered(t, x.Norm, 4); w.Compressor = &x },
		"entries' parts": func(w *model.DeviceLayer) { w.Compressor = sets[1].Compressor },
	} {
		t.Run(name, func(t *testing.T) {
			weights := *sets[0].DeviceLayer
			spoil(&weights)
			res, err := checkLayers(r, sets[:1], []*randomLayer{{DeviceLayer: &weights}})
			require.NoError(t, err)
			assert.Equal(t, name == "", res.Pass, "%+v", res)
			t.Logf("%+v", res)
		})
	}
}

// scattered returns a tensor of f32 that differs by so much in every place, up and down in turn.
func scattered(t *testing.T, x tensor.Tensor, by int) tensor.Tensor {
	v, err := fetch[float32](context.Background(), x)
	require.NoError(t, err)
	for i := range v {
		v[i] += float32(by * (i%2*2 - 1))
	}
	y, err := tensor.New(x.Buffer.Device(), "test", tensor.F32, len(v))
	require.NoError(t, err)
	t.Cleanup(func() { y.Close() })
	require.NoError(t, y.Upload(context.Background(), numfmt.Bytes(v)))
	return y
}

func TestLayerOptions(t *testing.T) {
	dev := testkit.Device(t)
	for arg, o := range map[string]LayerOptions{
		"model": {Models: []string{"v41-small+6"}}, "kind": {Kinds: []string{"x"}}, "weights": {Weights: []string{"q8_0"}},
		"batch": {Batches: []int{0}}, "context": {Contexts: []int{1 << 21}}, "prefill": {Prefill: []int{-1}}, "chunk": {Chunk: -1}, "reps": {Common: Common{Reps: -1}},
	} {
		var bad *vk.ArgumentError
		if assert.ErrorAs(t, Layers(t.Context(), dev, o, Limits{}, silent{}, nil), &bad, arg) {
			assert.Equal(t, arg, bad.Arg)
		}
	}
	for want, o := range map[string]LayerOptions{
		`model: got "small+6", want flash, pro, v41-flash, small, v41-small, or MODEL+N with N from 0 to 5`: {Models: []string{"small+6"}},
		"draft needs MODEL+N, such as small+5":                   {Models: []string{"small"}, Kinds: []string{"window", "draft"}},
		"flash has no layer of kind full2":                       {Models: []string{"flash"}, Kinds: []string{"full2"}},
		"want window, c4a, c128a: flash or pro has no layer of ": {Models: []string{"flash", "pro"}, Kinds: []string{"full2"}},
	} {
		err := Layers(t.Context(), dev, o, Limits{}, silent{}, nil)
		assert.ErrorIs(t, err, vk.ErrArgument)
		assert.ErrorContains(t, err, want)
		_, err = List("layer", OpOptions{}, o)
		assert.ErrorContains(t, err, want)
	}
}

// TestLayerWorkV41 compares the bytes of caches that a step of DeepSeek-V4.1 has to move with those
// of its records: rows of 528, entries of 288, keys of 68, and 584, 584, 132 in V4's records.
func TestLayerWorkV41(t *testing.T) {
	const tokens, window, picks, candidates = 131072, 128, 512, 16384
	for _, x := range []struct {
		records         model.Records
		row, entry, key float64
	}{{model.RecordsV41, 528, 288, 68}, {model.RecordsV4, 584, 584, 132}} {
		o := LayerOptions{Records: x.records}
		c := o.config("v41-flash+5")
		s := decodeShape(1, tokens, 1)
		s.keys = o.keys(c)
		for kind, want := range map[string]struct{ attended, scored, made float64 }{
			"window":          {0, 0, 0},
			"full2":           {picks, tokens / 2, 1},
			"reuse2":          {picks, 0, 0},
			"full-blocks1":    {picks, tokens, 1},
			"reuse1":          {picks, 0, 0},
			"reindex-within1": {picks, candidates, 0},
		} {
			spec := c.Layers[layerOf(c, kind)].LayerSpec
			w := &model.DeviceLayer{}
			if spec.Compresses() {
				w.Compressor = &model.DeviceCompressor{}
			}
			if spec.Picks == model.PickOwn {
				w.Indexer = &model.DeviceIndexer{}
			}
			if spec.LatentKeys {
				w.Indexer.Keys = &model.DeviceKeys{}
			}
			work := layerWork(c, spec, &randomLayer{DeviceLayer: w}, s)
			assert.Equal(t, window*x.row+want.attended*x.entry+4*(window+want.attended), work["attention"].Cache, kind)
			assert.Equal(t, want.scored*x.key, work["indexer.select"].Cache, kind)
			assert.Equal(t, 2*want.scored*32*128, work["indexer.select"].Flop, kind)
			assert.Equal(t, want.made*x.key, work["indexer.compressor.compress"].Cache, kind)
			states := 0.0
			if spec.Gated() {
				states = 2 * 2 * 512 * 4
			}
			assert.Equal(t, want.made*x.entry+states, work["compressor.compress"].Cache, kind)
		}
		// A block attends the window before it and all of itself; of its context rows are kept.
		of := func(s stepShape) map[string]Work {
			return layerWork(c, model.DraftBlock, &randomLayer{DeviceLayer: &model.DeviceLayer{}}, s)
		}
		assert.Equal(t, 133*x.row+4*133*5, of(s.drafts(c.DraftBlock))["attention"].Cache)
		context := of(s)
		assert.Equal(t, x.row, context["q_norm_rope_kv_insert"].Cache)
		assert.Len(t, context, 3)
	}
}

// TestOnlyLayers demands that layers of a model that are cut out of it take from each other as
// before, and that a layer may be there more than once.
func TestOnlyLayers(t *testing.T) {
	for _, name := range append(slices.Clone(Models), "v41-flash+5") {
		c := modelConfig(name)
		assert.NoError(t, c.Check(), name)
		assert.NoError(t, onlyLayers(c, firstOfKinds(c)...).Check(), name)
		for _, kind := range KindsOf(name) {
			i := layerOf(c, kind)
			list := append(sourcesOf(c, i), i, i)
			cut := onlyLayers(c, list...)
			assert.NoError(t, cut.Check(), "%s, %s", name, kind)
			for at, l := range cut.Layers {
				if l.Borrows {
					assert.Equal(t, c.Layers[list[at]].EntriesOf, list[l.EntriesOf], "%s, %s", name, kind)
				}
			}
		}
	}
	c := modelConfig("v41-flash")
	assert.Equal(t, []int{0, 2, 3, 20, 21, 24}, firstOfKinds(c))
	assert.Equal(t, []int{20, 24}, sourcesOf(c, 25))
	assert.Equal(t, cache.IndexKeyMXFP4, LayerOptions{}.keys(c))
	v4 := LayerOptions{Records: model.RecordsV4}
	assert.Equal(t, cache.IndexKeyFP8, v4.keys(v4.config("v41-flash")))
}
