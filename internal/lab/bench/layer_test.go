package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

var smallLayer = LayerOptions{Models: []string{"small"}, Batches: []int{3}, Contexts: []int{700}, Prefill: []int{300}, Chunk: 200, Common: Common{Reps: 2, Warmup: -1, Seed: 1}}

func TestLayerRows(t *testing.T) {
	long(t)
	dev, ctx := testkit.Device(t), context.Background()
	limits := Limits{CopyGBs: 1, MatrixTFLOPs: 1}
	for _, c := range []struct {
		format, weights string
		output          pipeline.OutputPath
	}{{"md", "fp8", 0}, {"csv", "bf16", 0}, {"json", "nvfp4", 0}, {"jsonl", "fp8", pipeline.OutputFP8}, {"benchstat", "fp8", pipeline.OutputFP8Packed}} {
		o := smallLayer
		o.Weights, o.Output = []string{c.weights}, c.output
		if c.format == "md" {
			o.Reps = 1 // all kinds, prefill too: CI has no time for more
		} else {
			o.Kinds, o.Prefill, o.checked = []string{"c4a"}, nil, true
		}
		var out bytes.Buffer
		report, err := NewLayerReport(&out, c.format, dev.Adapter(), limits)
		if err != nil {
			t.Fatal(err)
		}
		var rows []LayerRow
		if err := Layers(ctx, dev, o, limits, Silent{}, func(r LayerRow) { rows = append(rows, r); report.Add(r) }); err != nil {
			t.Fatalf("%+v: %v", rows, err)
		}
		if want := map[bool]int{true: 9, false: 1}[c.format == "md"]; len(rows) != want {
			t.Errorf("%s: %d rows, want %d", c.format, len(rows), want)
		}
		for _, r := range rows {
			if r.Status != "ok" || r.Variant == "" || r.Bound == 0 || !(r.Time.Median > 0 && r.Limit > 0 && r.Share > 0 && r.Memory["weights"] > 0) {
				t.Errorf("row %+v", r)
			}
			for _, op := range r.Ops {
				if !(op.Time.Median > 0) || op.Dispatches < 1 || op.Work.Bytes() == 0 && !strings.HasSuffix(op.Name, "compress") {
					t.Errorf("%s, %s: %+v", c.format, r.title(), op)
				}
			}
		}
		if err := report.Close(); err != nil {
			t.Fatal(err)
		}
		switch c.format {
		case "csv":
			if _, err := csv.NewReader(&out).ReadAll(); err != nil {
				t.Error(err)
			}
		case "json":
			if !json.Valid(out.Bytes()) {
				t.Error("not JSON")
			}
		case "md":
			for _, want := range []string{"| small | c128a | fp8 | prefill | 100 | 300 |", "| indexer.select |", "weights ", "operation by operation"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("report lacks %q:\n%s", want, out.String())
				}
			}
		}
	}
}

// A layer whose operation gives something else than its reference is called wrong. The
// kernels are right, so the check gets other weights or pages than they had.
func TestWrongLayersAreSeen(t *testing.T) {
	long(t)
	dev, ctx := testkit.Device(t), context.Background()
	o := smallLayer.withDefaults(dev.Adapter().Type)
	c := modelConfig("small")
	maker, ropes := newWeightMaker(ctx, dev, 1), newRopeTables(dev, 700)
	defer maker.Close()
	defer ropes.Close()
	var sets []*randomLayer
	for range 2 {
		w, err := maker.layer(c, 1, model.FormatFP8)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		sets = append(sets, w)
	}
	shape := decodeShape(3, 700, o.Keys)
	for name, spoil := range map[string]func(r *layerRig, w *randomLayer){
		"wq_a|wkv":        func(_ *layerRig, w *randomLayer) { w.QKV = sets[1].QKV },
		"wo_a":            func(_ *layerRig, w *randomLayer) { w.OA = sets[1].OA },
		"wo_b":            func(_ *layerRig, w *randomLayer) { w.OB = sets[1].OB },
		"q of head":       func(_ *layerRig, w *randomLayer) { w.QB = sets[1].QB },
		"indexer.wq_b":    func(_ *layerRig, w *randomLayer) { x := *w.Indexer; x.QB = sets[1].Indexer.QB; w.Indexer = &x },
		"q norm":          func(_ *layerRig, w *randomLayer) { w.QNorm = sets[1].QNorm },
		"kv norm":         func(_ *layerRig, w *randomLayer) { w.KVNorm = sets[1].KVNorm },
		"attention of":    func(_ *layerRig, w *randomLayer) { w.Sink = doubled(t, w.Sink) },
		"window slots":    func(r *layerRig, _ *randomLayer) { swap(r.host.tables["window cache"]) },
		"picks of token":  func(r *layerRig, _ *randomLayer) { swap(r.host.tables["indexer keys"]) },
		"compressed slot": func(r *layerRig, _ *randomLayer) { swap(r.host.tables["compressed cache"]) },
	} {
		t.Run(name, func(t *testing.T) {
			r, err := newLayerRig(ctx, dev, pipeline.LayerKindConfig{Model: c, Ratio: pipeline.RatioC4A, Tokens: 3, MaxLen: 700}, shape, ropes, 1, Silent{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := r.use(sets); err != nil {
				t.Fatal(err)
			}
			if res, err := r.check(sets[0]); err != nil || !res.Pass {
				t.Fatalf("untouched: %+v, %v", res, err)
			}
			w := *sets[0]
			weights := *w.DeviceLayer
			w.DeviceLayer = &weights
			spoil(r, &w)
			want := name
			if name == "kv norm" && r.kind.Tensors().KV.IsZero() {
				want = "stored" // by the insertion, which norms them
			}
			if res, err := r.check(&w); err != nil || res.Pass || !strings.Contains(res.Detail, want) {
				t.Errorf("passes or is another: %+v, %v", res, err)
			}
		})
	}
}

// swap exchanges the pages of a table's rows.
func swap(table []int32) { slices.Reverse(table) }

func doubled(t *testing.T, x tensor.Tensor) tensor.Tensor {
	v, err := fetch[float32](context.Background(), x)
	if err != nil {
		t.Fatal(err)
	}
	for i := range v {
		v[i] += 4
	}
	y, err := tensor.New(x.Buffer.Device(), "test", tensor.F32, len(v))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { y.Close() })
	if err := y.Upload(context.Background(), bytesOf(v)); err != nil {
		t.Fatal(err)
	}
	return y
}

func TestLayerOptions(t *testing.T) {
	dev := testkit.Device(t)
	for arg, o := range map[string]LayerOptions{
		"model": {Models: []string{"x"}}, "kind": {Kinds: []string{"x"}}, "weights": {Weights: []string{"x"}},
		"batch": {Batches: []int{0}}, "context": {Contexts: []int{1 << 21}}, "prefill": {Prefill: []int{-1}}, "chunk": {Chunk: -1}, "reps": {Common: Common{Reps: -1}},
	} {
		var bad *vk.ArgumentError
		if err := Layers(context.Background(), dev, o, Limits{}, Silent{}, nil); !errors.As(err, &bad) || bad.Arg != arg {
			t.Errorf("%s: %v", arg, err)
		}
	}
}
