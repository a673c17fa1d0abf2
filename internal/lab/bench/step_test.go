package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/model"
)

func TestStepRows(t *testing.T) {
	dev, ctx := testkit.Device(t), context.Background()
	limits := Limits{CopyGBs: 1, MatrixTFLOPs: 1}
	for _, c := range []struct {
		model, weights string
		layers, tokens int
		batches        []int
		formats        []string // of reports about the same rows
	}{{"small", "fp8", 3, 700, []int{1, 3}, Formats[:1]}, {"small", "nvfp4", 3, 700, []int{2}, Formats[1:]},
		{"v41-small+1", "fp8", 8, 150, []int{2}, nil}} {
		o := StepOptions{LayerOptions{Checked: true, Models: []string{c.model}, Weights: []string{c.weights}, Batches: c.batches,
			Contexts: []int{c.tokens}, Common: Common{Reps: 2, Warmup: 1, Seed: 1}}}
		before := len(dev.MemoryInUse())
		out, reports := make([]bytes.Buffer, len(c.formats)), make([]*Report[StepRow], len(c.formats))
		for i, format := range c.formats {
			var err error
			reports[i], err = NewStepReport(ReportOn{&out[i], format, dev.Adapter(), "", limits})
			require.NoError(t, err)
		}
		rows := 0
		err := Steps(ctx, dev, o, limits, Silent{}, func(r StepRow) {
			rows++
			for _, report := range reports {
				report.Add(r)
			}
			assert.Equal(t, "ok", r.Status, r.Detail)
			assert.Equal(t, c.layers, r.Layers)
			assert.Empty(t, r.Shared)
			assert.NotZero(t, r.Bound)
			assert.GreaterOrEqual(t, r.Dispatches, 40)
			assert.NotZero(t, r.Memory["weights"])
			assert.NotZero(t, r.Memory["caches"])
			for name, v := range map[string]float64{
				"time": r.Time.Median, "apart": r.Apart.Median, "host": r.Host.Median, "apart host": r.ApartHost.Median,
				"chained": r.Chained.Median, "chained host": r.ChainedHost.Median, "limit": r.Limit, "times": r.Times,
				"floor": r.Floor.Median, "empty floor": r.EmptyFloor.Median, "chained floor": r.ChainedFloor.Median,
				"times floor": r.TimesFloor, "times chained floor": r.TimesChainedFloor,
			} {
				assert.Positive(t, v, name)
			}
			assert.Greater(t, r.Latency.Median, r.Host.Median)
			assert.Greater(t, r.ApartWall.Median, r.ApartHost.Median)
			assert.Greater(t, r.ChainedWall.Median, r.ChainedHost.Median)
			assert.Greater(t, r.ChainedBarriers, r.Barriers)
			d, _ := counts(r.Ops)
			// Barriers are not compared: a slow device has several submissions for a step, and
			// where one begins there is none to be derived.
			assert.Equal(t, r.Dispatches, d, "operations have %d launches, the step", d)
			for _, op := range r.Ops {
				assert.False(t, !(op.Time.Median > 0) || op.Layer == "" ||
					op.Layer != "all" && op.Work.Bytes() == 0 && !strings.HasSuffix(op.Name, "compress"), "%+v", op)
			}
		})
		require.NoError(t, err)
		assert.Equal(t, len(o.Batches), rows, "rows")
		assert.LessOrEqual(t, len(dev.MemoryInUse()), before+1, "memory left: %v", dev.MemoryInUse()) // the staging memory stays
		for i, format := range c.formats {
			require.NoError(t, reports[i].Close())
			checkStepReport(t, format, out[i].Bytes())
		}
	}
}

// TestWrongChainsAreSeen demands that a step is called wrong in which a layer does not enter the
// residual, and that of those that are timed the last one has the context that was asked for.
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
		if err == nil && skip == 0 {
			err = s.time()
			assert.Equal(t, []int{700, 700}, []int{s.sessions[0].Len(), s.longest}, "tokens in the last step, and of the engine")
		}
		require.NoError(t, errors.Join(err, s.close()))
		require.Equal(t, want, s.row.Status, "place %d left out: %s", skip, s.row.Detail)
		assert.Equal(t, strings.Contains(s.row.Detail, "sums over the layers differ"), want == "wrong",
			"place %d left out: %s", skip, s.row.Detail)
	}
}

func checkStepReport(t *testing.T, format string, out []byte) {
	t.Helper()
	switch format {
	case "csv":
		_, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
		assert.NoError(t, err)
	case "json":
		assert.True(t, json.Valid(out), "not JSON")
	case "md":
		for _, want := range []string{"| context | tokens/s | layers |", "| small | fp8 | 3 | 700 | ", "| c4a | indexer.select |", "A layer: window: 1 layers", "caches "} {
			assert.Contains(t, words(string(out)), want)
		}
	}
}

// TestStepTooMuch demands that what no device holds is refused at once, with what it takes.
func TestStepTooMuch(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	o := StepOptions{LayerOptions{Checked: true, Models: []string{"small"}, Batches: []int{400, 1}, Contexts: []int{1000000, 9}, Keys: 99}}
	var got []string
	err := Steps(t.Context(), dev, o, Limits{CopyGBs: 1}, Silent{}, func(r StepRow) {
		got = append(got, fmt.Sprintf("%d of %d: %s, %s", r.Batch, r.Context, r.Status, r.Detail))
	})
	require.ErrorIs(t, err, ErrWrong)
	require.Len(t, got, 4)
	assert.Contains(t, got[0], "400 of 1000000: skipped, out of device memory: the caches of 400 sequences of 1000000 tokens")
	for i, name := range []string{"1 of 1000000", "400 of 9", "1 of 9"} {
		assert.Contains(t, got[i+1], name+": failed, pipeline: new engine: ")
	}
}

// TestCasesFail demands a row of each layer and prompt that no engine takes.
func TestCasesFail(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	o := LayerOptions{Checked: true, Models: []string{"small"}, Kinds: []string{"c4a"}, Batches: []int{1}, Contexts: []int{9},
		Prefill: []int{5, 6}, Chunk: 5, Keys: 99}
	var got []string
	note := func(status, detail string) {
		assert.Contains(t, detail, "pipeline: new engine: ")
		got = append(got, status)
	}
	require.ErrorIs(t, Layers(t.Context(), dev, o, anyLimits, Silent{}, func(r LayerRow) { note(r.Status, r.Detail) }), ErrWrong)
	assert.Len(t, got, 4)
	err := Prefills(t.Context(), dev, PrefillOptions{o}, anyLimits, Silent{}, func(r PrefillRow) { note(r.Status, r.Detail) })
	require.ErrorIs(t, err, ErrWrong)
	assert.Equal(t, slices.Repeat([]string{"failed"}, 4+2), got)
}

// TestLongestContext holds that suites take the longest context that an engine on the device takes.
func TestLongestContext(t *testing.T) {
	if os.Getenv("VKMLA_TEST_FULL") != "1" {
		t.Skip("VKMLA_TEST_FULL is not set")
	}
	dev := testkit.Device(t)
	caps := dev.Caps()
	longest := min(1<<20, int(min(caps.MaxStorageBufferRange, caps.MaxAllocation)/(4*model.RopeRow)))
	o := LayerOptions{Checked: true, Models: []string{"small", "v41-small"}, Batches: []int{1}, Contexts: []int{longest}, Common: quick}
	require.NoError(t, Steps(t.Context(), dev, StepOptions{o}, anyLimits, Silent{}, func(r StepRow) {
		assert.Equal(t, "ok", r.Status, "%s: %s", r.title(), r.Detail)
	}))
	require.NoError(t, Layers(t.Context(), dev, o, anyLimits, Silent{}, func(r LayerRow) {
		assert.Equal(t, "ok", r.Status, "%s: %s", r.title(), r.Detail)
	}))
}
