package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
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
		out, reports := make([]bytes.Buffer, len(c.formats)), make([]*Report[StepRow], len(c.formats))
		for i, format := range c.formats {
			var err error
			if reports[i], err = NewStepReport(ReportOn{&out[i], format, dev.Adapter(), "", limits}); err != nil {
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
				!(r.Time.Median > 0 && r.Apart.Median > 0 && r.ApartHost.Median > 0 && r.ApartWall.Median > r.ApartHost.Median && r.Host.Median > 0 && r.Latency.Median > r.Host.Median && r.Limit > 0 && r.Times > 0 &&
					r.Chained.Median > 0 && r.ChainedHost.Median > 0 && r.ChainedWall.Median > r.ChainedHost.Median && r.ChainedBarriers > r.Barriers && r.Floor.Median > 0 && r.EmptyFloor.Median > 0 && r.ChainedFloor.Median > 0 && r.TimesFloor > 0 && r.TimesChainedFloor > 0) {
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

// TestWrongChainsAreSeen demands that a step is called wrong in which a layer does not enter the
// residual.
func TestWrongChainsAreSeen(t *testing.T) {
	dev, ctx := testkit.Device(t), context.Background()
	maker := newWeightMaker(ctx, dev, 1)
	defer maker.Close()
	o := StepOptions{LayerOptions{Models: []string{"small"}, Weights: []string{"fp8"}, Batches: []int{1}, Contexts: []int{700}, Common: Common{Seed: 1}}}.withDefaults(slow(dev))
	for skip, want := range map[int]string{0: "ok", 2: "wrong"} {
		s := newStepRun(ctx, dev, o, Limits{}, Silent{}, maker, StepRow{Model: "small", Weights: "fp8", Batch: 1, Context: 700})
		s.chain.skip = skip
		err := errors.Join(s.makeWeights(), s.open())
		if err == nil {
			_, err = s.checkChain()
		}
		if err := errors.Join(err, s.close()); err != nil {
			t.Fatal(err)
		}
		if s.row.Status != want || (want == "wrong") != strings.Contains(s.row.Detail, "sums over the layers differ") {
			t.Errorf("place %d left out: %s: %s", skip, s.row.Status, s.row.Detail)
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

// TestStepTooMuch demands that what no device holds is refused at once, with what it takes.
func TestStepTooMuch(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	o := StepOptions{LayerOptions{checked: true, Models: []string{"small"}, Weights: []string{"fp8"}, Batches: []int{4096}, Contexts: []int{1000000}}}
	var rows []StepRow
	if err := Steps(t.Context(), dev, o, Limits{CopyGBs: 1}, Silent{}, func(r StepRow) { rows = append(rows, r) }); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || rows[0].Status != "skipped" || !strings.Contains(rows[0].Detail, "4096 sequences of 1") {
		t.Errorf("rows %+v", rows)
	}
}
