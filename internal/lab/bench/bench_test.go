package bench

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var small = DecodeOptions{Heads: 8, TopK: 61, Window: 69, Batches: []int{1, 3}, Context: 700, Common: Common{Reps: 3, Warmup: 1, Seed: 1}}

func TestDecodeRows(t *testing.T) {
	dev, ctx := testkit.Device(t), context.Background()
	l, err := Measure(ctx, dev, 2, Silent{})
	if err != nil {
		t.Fatal(err)
	}
	if !(l.CopyGBs > 0 && l.MatrixTFLOPs > 0 && l.MatrixKind != "") {
		t.Fatalf("limits %+v", l)
	}
	var rows []Row
	if err := Decode(ctx, dev, small, l, Silent{}, func(r Row) { rows = append(rows, r) }); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 {
		t.Fatalf("%d rows, want one for each batch", len(rows))
	}
	for i, r := range rows {
		if r.Batch != small.Batches[i] || r.Status != "ok" || r.Bound == 0 || len(r.Attend.Samples) != 3 ||
			!(r.Attend.Median > 0 && r.Attend.P95 >= r.Attend.Median && r.Step.Median > 0) ||
			!(r.GBs > 0 && r.TFLOPs > 0 && r.ShareCopy > 0 && r.ShareMatrix > 0) {
			t.Errorf("row %+v", r)
		}
	}
}

// A kernel whose result differs from the reference is called wrong, not timed.
func TestWrongResultsAreSeen(t *testing.T) {
	dev, ctx := testkit.Device(t), context.Background()
	o := small.withDefaults(dev.Adapter().Type)
	for name, spoil := range map[string]func(h *hostSet){
		"queries": func(h *hostSet) { h.q = append([]uint16{}, h.q...); h.q[5*512] ^= 0x8000; h.q[5*512+1] = 0x4140 },
		"new row": func(h *hostSet) {
			for i := range 64 {
				h.kv[i] ^= 0x8000
			}
		},
		"picks": func(h *hostSet) { h.picks[60]++ },
	} {
		w, err := newWorkload(ctx, dev, o, 1, Silent{})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := w.verify(ctx); err != nil || !r.Pass {
			t.Errorf("%s untouched: %+v, %v", name, r, err)
		}
		spoil(w.sets[0].host)
		if r, err := w.verify(ctx); err != nil || r.Pass {
			t.Errorf("%s spoiled, but the check passes: %+v, %v", name, r, err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOptionErrors(t *testing.T) {
	dev := testkit.Device(t)
	for name, change := range map[string]func(*DecodeOptions){
		"heads":   func(o *DecodeOptions) { o.Heads = 129 },
		"batch":   func(o *DecodeOptions) { o.Batches = []int{0} },
		"context": func(o *DecodeOptions) { o.Context = 128 },
		"reps":    func(o *DecodeOptions) { o.Reps = -1 },
		"variant": func(o *DecodeOptions) { o.Variant = "quick" },
	} {
		o := small
		change(&o)
		err := Decode(context.Background(), dev, o, Limits{}, Silent{}, func(Row) {})
		if !errors.Is(err, vk.ErrArgument) {
			t.Errorf("%s: %v, want ErrArgument", name, err)
		}
	}
}

func TestQuantile(t *testing.T) {
	x := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.25: 2, 1: 5, 0.95: 4.8} {
		if got := quantile(x, q); math.Abs(got-want) > 1e-12 {
			t.Errorf("quantile %g is %g, want %g", q, got, want)
		}
	}
	if !math.IsNaN(quantile(nil, 0.5)) {
		t.Error("the median of nothing is not NaN")
	}
}

// long leaves a test out of the short ones: under the race detector references take ten
// times as long, and here one goroutine does it all.
func long(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
}

// A variant has to be one of each operation that has a choice, and one has to have it.
func TestCommonVariants(t *testing.T) {
	for _, c := range []struct {
		variant string
		ops     []string
		ok      bool
	}{
		{"", []string{"topk"}, true}, {"base", []string{"topk", "logits_fp8"}, true}, {"base", []string{"topk", "insert_k"}, false},
		{"twopass-base", []string{"decode_window"}, true}, {"twopass-base", []string{"decode_window", "prefill"}, false}, {"soup", []string{"wq_b"}, false},
	} {
		var bad *vk.ArgumentError
		if err := (Common{Variant: c.variant}).checkVariant("bench", c.ops); (err == nil) != c.ok || err != nil && (!errors.As(err, &bad) || bad.Arg != "variant") {
			t.Errorf("%q of %v: %v", c.variant, c.ops, err)
		}
	}
}
