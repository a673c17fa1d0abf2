package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/testkit"
)

func TestStepRows(t *testing.T) {
	dev, ctx := testkit.Device(t), context.Background()
	limits := Limits{CopyGBs: 1, MatrixTFLOPs: 1}
	for _, c := range []struct {
		weights string
		batches []int
		formats []string // of reports about the same rows
	}{{"fp8", []int{1, 3}, Formats[:1]}, {"nvfp4", []int{2}, Formats[1:]}} {
		o := StepOptions{LayerOptions{checked: true, Models: []string{"small"}, Weights: []string{c.weights}, Batches: c.batches, Contexts: []int{700}, Common: Common{Reps: 2, Warmup: 1, Seed: 1}}}
		before := len(dev.MemoryInUse())
		out, reports := make([]bytes.Buffer, len(c.formats)), make([]*StepReport, len(c.formats))
		for i, format := range c.formats {
			var err error
			if reports[i], err = NewStepReport(&out[i], format, dev.Adapter(), limits); err != nil {
				t.Fatal(err)
			}
		}
		rows := 0
		if err := Steps(ctx, dev, o, limits, Silent{}, func(r StepRow) {
			rows++
			for _, report := range reports {
				report.Add(r)
			}
			if r.Status != "ok" || r.Layers != 3 || r.Shared != "" || r.Bound == 0 || r.Dispatches < 40 || r.Memory["weights"] == 0 || r.Memory["caches"] == 0 ||
				!(r.Time.Median > 0 && r.Apart.Median > 0 && r.ApartHost.Median > 0 && r.ApartWall.Median > r.ApartHost.Median && r.Host.Median > 0 && r.Latency.Median > r.Host.Median && r.Limit > 0 && r.Times > 0) {
				t.Errorf("row %+v", r)
			}
			d, _ := counts(r.Ops)
			// Barriers are not compared: a slow device has several submissions for a step, and
			// where one begins there is none to be derived.
			if d != r.Dispatches {
				t.Errorf("operations have %d launches, the step %d", d, r.Dispatches)
			}
			for _, op := range r.Ops {
				if !(op.Time.Median > 0) || op.Layer == "" || op.Layer != "all" && op.Work.Bytes() == 0 && !strings.HasSuffix(op.Name, "compress") {
					t.Errorf("%+v", op)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if rows != len(o.Batches) {
			t.Errorf("%d rows", rows)
		}
		if after := len(dev.MemoryInUse()); after > before+1 { // the staging memory stays
			t.Errorf("memory left: %v", dev.MemoryInUse())
		}
		for i, format := range c.formats {
			if err := reports[i].Close(); err != nil {
				t.Fatal(err)
			}
			checkStepReport(t, format, out[i].Bytes())
		}
	}
}

func checkStepReport(t *testing.T, format string, out []byte) {
	t.Helper()
	switch format {
	case "csv":
		if _, err := csv.NewReader(bytes.NewReader(out)).ReadAll(); err != nil {
			t.Error(err)
		}
	case "json":
		if !json.Valid(out) {
			t.Error("not JSON")
		}
	case "md":
		for _, want := range []string{"| small | fp8 | 3 | 700 | 3 |", "| c4a | indexer.select |", "A layer: window: 1 layers", "caches "} {
			if !bytes.Contains(out, []byte(want)) {
				t.Errorf("report lacks %q:\n%s", want, out)
			}
		}
	}
}
