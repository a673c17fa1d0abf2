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
	for _, format := range Formats {
		o := StepOptions{LayerOptions{checked: true, Models: []string{"small"}, Batches: []int{1, 3}, Contexts: []int{700}, Reps: 2, Warmup: 1, Seed: 1}}
		if format != "md" {
			o.Batches, o.Weights = []int{2}, []string{"nvfp4"}
		}
		before := len(dev.MemoryInUse())
		var out bytes.Buffer
		report, err := NewStepReport(&out, format, dev.Adapter(), limits)
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		if err := Steps(ctx, dev, o, limits, Silent{}, func(r StepRow) {
			rows++
			report.Add(r)
			if r.Status != "ok" || r.Layers != 3 || r.Shared != "" || r.Bound == 0 || r.Dispatches < 40 || r.Memory["weights"] == 0 || r.Memory["caches"] == 0 ||
				!(r.Time.Median > 0 && r.Apart.Median > 0 && r.Host.Median > 0 && r.Latency.Median > r.Host.Median && r.Limit > 0 && r.Times > 0) {
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
		if err := report.Close(); err != nil {
			t.Fatal(err)
		}
		if after := len(dev.MemoryInUse()); after > before+1 { // the staging memory stays
			t.Errorf("memory left: %v", dev.MemoryInUse())
		}
		switch format {
		case "csv":
			if _, err := csv.NewReader(&out).ReadAll(); err != nil {
				t.Error(err)
			}
		case "json":
			if !json.Valid(out.Bytes()) {
				t.Error("not JSON")
			}
		case "md":
			for _, want := range []string{"| small | fp8 | 3 | 700 | 3 |", "| c4a | indexer.select |", "A layer: window: 1 layers", "caches "} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("report lacks %q:\n%s", want, out.String())
				}
			}
		}
	}
}
