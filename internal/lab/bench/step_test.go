package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestStepRows(t *testing.T) {
	dev, ctx := testkit.Device(t), context.Background()
	for _, c := range []struct {
		model, weights string
		layers, tokens int
		batches        []int
	}{{"small", "fp8", 3, 700, []int{1, 3}}, {"small", "nvfp4", 3, 700, []int{2}}, {"v41-small+1", "fp8", 8, 150, []int{2}}} {
		o := LayerOptions{Checked: true, Models: []string{c.model}, Weights: []string{c.weights}, Batches: c.batches,
			Contexts: []int{c.tokens}, Common: Common{Reps: 2, Warmup: 1, Seed: 1}}
		before, rows := len(dev.MemoryInUse()), 0
		require.NoError(t, Steps(ctx, dev, o, anyLimits, silent{}, func(r StepRow) {
			rows++
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
				"floor": r.Floor.Median, "chained floor": r.ChainedFloor.Median, "times floor": r.TimesFloor,
				"times chained floor": r.TimesChainedFloor,
			} {
				assert.Positive(t, v, name)
			}
			assert.Greater(t, r.Latency.Median, r.Host.Median)
			assert.Greater(t, r.ApartWall.Median, r.ApartHost.Median)
			assert.Greater(t, r.ChainedWall.Median, r.ChainedHost.Median)
			d, _ := counts(r.Ops)
			// Barriers are not compared: a slow device has several submissions for a step, and
			// where one begins there is none to be derived.
			assert.Equal(t, r.Dispatches, d, "operations have %d launches, the step", d)
			for _, op := range r.Ops {
				assert.False(t, !(op.Time.Median > 0) || op.Layer == "" ||
					op.Layer != "all" && op.Work.Bytes() == 0 && !strings.HasSuffix(op.Name, "compress"), "%+v", op)
			}
		}))
		assert.Equal(t, len(o.Batches), rows, "rows")
		assert.LessOrEqual(t, len(dev.MemoryInUse()), before+1, "memory left: %v", dev.MemoryInUse()) // the staging memory stays
	}
}

// TestWrongChainsAreSeen demands that a step is called wrong in which a layer does not enter the
// residual, and that of those that are timed the last one has the context that was asked for.
func TestWrongChainsAreSeen(t *testing.T) {
	dev, ctx := testkit.Device(t), context.Background()
	maker := newWeightMaker(ctx, dev, 1)
	defer maker.Close()
	o := LayerOptions{Models: []string{"small"}, Weights: []string{"fp8"}, Batches: []int{1}, Contexts: []int{700}, Common: Common{Seed: 1}}.stepDefaults(slow(dev))
	for skip, want := range map[int]string{0: "ok", 2: "wrong"} {
		s := newStepRun(ctx, dev, o, Limits{}, silent{}, maker, StepRow{Model: "small", Weights: "fp8", Batch: 1, Context: 700})
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

// TestStepTooMuch demands that what no device holds is refused at once, with what it takes.
func TestStepTooMuch(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	o := LayerOptions{Checked: true, Models: []string{"small"}, Batches: []int{400, 1}, Contexts: []int{1000000, 9}, Keys: 99}
	var got []string
	err := Steps(t.Context(), dev, o, Limits{CopyGBs: 1}, silent{}, func(r StepRow) {
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
	require.ErrorIs(t, Layers(t.Context(), dev, o, anyLimits, silent{}, func(r LayerRow) { note(r.Status, r.Detail) }), ErrWrong)
	assert.Len(t, got, 4)
	err := Prefills(t.Context(), dev, o, anyLimits, silent{}, func(r PrefillRow) { note(r.Status, r.Detail) })
	require.ErrorIs(t, err, ErrWrong)
	assert.Equal(t, slices.Repeat([]string{"failed"}, 4+2), got)
}

// What is left of a step are its launches, where they wait, and all its bytes.
func TestSkeleton(t *testing.T) {
	s := &stepRun{engineRun: engineRun{cfg: model.Config{Layers: model.V4Layers(0, 128)}}, row: StepRow{Batch: 2}, chain: chain{width: 10}}
	list := []vk.Section{
		{Name: "step", Dispatches: 1},
		{Name: "between", Dispatches: 1, Waits: []int{0}},
		{Name: firstSection, Dispatches: 1, Waits: []int{0}},
		{Name: "attention", Dispatches: 2, Waits: []int{0, 1, 2}}, // a copy after the last waits
		{Name: "wo_a, wo_b", Dispatches: 1},
		{Name: gateSection, Dispatches: 1}, // in front of the second layer's first product
		{Name: firstSection, Dispatches: 1},
		{Name: "attention", Dispatches: 1, Waits: []int{0}},
		{Name: "wq_b", Dispatches: 1},
		{Name: "attention", Dispatches: 1, Waits: []int{0}},
		{Name: "between"},
	}
	got := s.skeleton(decodeShape(2, 1, 1), list, func(_ stepShape, layer int) map[string]Work {
		w := map[string]Work{firstSection: {Weights: 1}, "attention": {Cache: 10}, "wo_a": {Weights: 100}, "wo_b": {Activations: 1000}, "norm": {Activations: 5}}
		if layer == 1 {
			return map[string]Work{firstSection: {Weights: 2}, gateSection: {Weights: 20}, "attention": {Cache: 200}, "wq_b": {Weights: 2000}}
		}
		return w
	})
	want := []reading{{false, 0}, {true, 240}, {true, 6}, {true, 10}, {true, 0}, {true, 1100},
		{false, 20}, {false, 2}, {true, 200}, {false, 2000}, {true, 0}}
	assert.Equal(t, want, got)
}

// A kernel that does not read all that it is for is not used.
func TestReader(t *testing.T) {
	dev, ctx := testkit.Device(t), t.Context()
	for _, name := range []string{"bench_read", readKernel(dev)} {
		code, err := kernels.Get(name)
		require.NoError(t, err)
		require.NoError(t, testkit.ComparePush(code.SPIRV, benchReadPush{}))
		r, err := newReader(ctx, dev, name, readShape{64, 3, 5})
		require.NoError(t, err)
		pattern := make([]byte, readPattern)
		err = r.check(ctx, dev, pattern)
		assert.ErrorContains(t, err, "add up to 0", "%s: the words are not zeros", name)
		assert.NoError(t, errors.Join(r.src.Upload(ctx, make([]byte, r.src.Bytes())), r.check(ctx, dev, pattern), r.close()),
			"%s: the words are zeros", name)
	}
}

// A floor has as many launches one after the other as the part, and reads its bytes.
func TestFloors(t *testing.T) {
	dev, ctx := testkit.Device(t), t.Context()
	x, err := tensor.New(dev, "test", tensor.U32, 64)
	require.NoError(t, err)
	defer x.Close()
	f, err := openReader(ctx, dev)
	require.NoError(t, err)
	for want := range 3 {
		f.at = 0
		us, launches, err := f.below(ctx, dev, opPart{Work: verify.Work{Bytes: 8192}, inner: 1, record: func(rec *vk.Recorder, _ int) error {
			err := rec.Fill(x.View(), 1)
			for range want {
				err = errors.Join(err, rec.Fill(x.View(), 2))
			}
			return err
		}}, 0, 2)
		assert.NoError(t, err, "%d launches of %g us", launches, us)
		assert.Equal(t, want+1, launches, "%d launches of %g us", launches, us)
		assert.Greater(t, us, float64(0), "%d launches of %g us", launches, us)
		assert.Equal(t, uint64(2*(8192+want*viewAlign)), f.at, "two samples go on by %d bytes", f.at)
	}
	assert.NoError(t, f.close())
}

// TestPrefillRows holds that a prompt goes through all layers, chunk by chunk, and what is said of
// it.
func TestPrefillRows(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	o := LayerOptions{Checked: true, Models: []string{"small"},
		Prefill: []int{40}, Chunk: 24, Common: Common{Reps: 2, Seed: 1}}
	before := len(dev.MemoryInUse())
	var row PrefillRow
	require.NoError(t, Prefills(t.Context(), dev, o, anyLimits, silent{}, func(r PrefillRow) { row = r }))
	require.Equal(t, "ok", row.Status, row.Detail)
	assert.NotZero(t, row.Bound)
	assert.Equal(t, []int{3, 40, 24}, []int{row.Layers, row.Tokens, row.Chunk})
	assert.Empty(t, row.Shared)
	assert.LessOrEqual(t, len(dev.MemoryInUse()), before+1, "memory left: %v", dev.MemoryInUse())
	require.Len(t, row.Time.Samples, 2)
	assert.InEpsilon(t, 40/row.Time.Median*1e6, row.TokensPerS, 1e-9)
	assert.Greater(t, row.Latency.Median, row.Time.Median)
	at, sum, limit := 0, 0.0, 0.0
	for _, c := range row.Chunks {
		assert.Equal(t, at, c.First)
		assert.Positive(t, c.Limit)
		at, sum, limit = at+c.Tokens, sum+c.Time.Samples[1], limit+c.Limit
	}
	assert.Equal(t, 40, at, "tokens of all chunks")
	assert.InEpsilon(t, row.Time.Samples[1], sum, 1e-9, "times of all chunks")
	assert.InEpsilon(t, row.Limit, limit, 1e-9)
}

// TestPrefillWarmup holds that each size of a step is recorded for good before prompts are timed.
func TestPrefillWarmup(t *testing.T) {
	for _, c := range []struct{ tokens, chunk, want int }{
		{100, 100, 3}, {100, 200, 3}, {200, 100, 2}, {300, 100, 1}, {310, 100, 3}, {1000, 100, 1},
	} {
		o := LayerOptions{Chunk: c.chunk, Common: Common{Warmup: 1}}
		r := newPrefillRun(t.Context(), nil, o, Limits{}, silent{}, nil,
			PrefillRow{Model: "small", Weights: "fp8", Tokens: c.tokens})
		assert.Equal(t, c.want, r.warmup(), "%+v", c)
	}
}

// TestAwake holds that what follows a pause of the host counts neither in the device's time nor in
// the host's, and that what is slow without a pause does. The samples are as an H200's were: it
// records the third step anew, and 12 of 40 run at a quarter of the speed.
func TestAwake(t *testing.T) {
	device, host := slices.Repeat([]float64{3630e3}, 40), slices.Repeat([]float64{80e3}, 40)
	host[2] = 3926703e3
	for i := 2; i < 14; i++ {
		device[i] = 15118e3
	}
	device[30], host[31] = 5000e3, 300e3 // what happens besides
	those := awake(host, device)
	for i, is := range those {
		assert.Equal(t, i < 2 || i >= 14, is, i)
	}
	d, h := summariseThose(device, those), summariseThose(host, those)
	assert.Equal(t, []float64{3630, 3630, 80, 80}, []float64{d.Median, d.P95, h.Median, h.P95})
	assert.Len(t, d.Samples, 40)
	assert.Equal(t, 15118.0, d.Samples[5])
	assert.Greater(t, summarise(device).P95, 15000.0)

	device[30], device[31], device[35] = 9000e3, 9000e3, 9000e3 // slow without a pause: it is the step's
	assert.Equal(t, 9000.0, summariseThose(device, awake(host, device)).P95)
}
