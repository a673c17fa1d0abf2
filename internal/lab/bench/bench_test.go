package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// anyLimits are limits for tests that time nothing in earnest.
var anyLimits = Limits{CopyGBs: 1, MatrixTFLOPs: 1}

// silent is a Progress that says nothing.
type silent struct{}

func (silent) Rows(int, int)        {}
func (silent) Step(string)          {}
func (silent) Advance(int64, int64) {}

// quick are so few launches that tests can wait for them.
var quick = Common{Reps: 2, Warmup: -1, Seed: 1}

// long leaves a test out of the short ones: under the race detector references take ten
// times as long, and here one goroutine does it all.
func long(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
}

func TestMeasure(t *testing.T) {
	l, err := Measure(t.Context(), testkit.Device(t), 2, silent{})
	require.NoError(t, err)
	assert.Positive(t, l.CopyGBs)
	assert.Positive(t, l.MatrixTFLOPs)
	assert.NotEmpty(t, l.MatrixKind)
}

func TestQuantile(t *testing.T) {
	x := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.25: 2, 1: 5, 0.95: 4.8} {
		assert.InDelta(t, want, quantile(x, q), 1e-12, "quantile %g", q)
	}
	assert.True(t, math.IsNaN(quantile(nil, 0.5)), "the median of nothing")
}

// smallSizes are sizes that the references of all operations are quick for.
var smallSizes = verify.SizeOptions{Heads: []int{5}, IndexHeads: 3, TopK: []int{61}, Batches: []int{1, 3}, Prefill: []int{129}, Contexts: []int{700}, Rows: []int{200}}

// Every operation of every suite is timed, with what its kind of work has to say.
func TestOpRows(t *testing.T) {
	long(t)
	dev := testkit.Device(t)
	for _, suite := range OpSuites {
		if suite.Name == compareSuite {
			continue
		}
		seen := map[string]int{}
		o := OpOptions{Common: quick, Sizes: smallSizes}
		o.Reps = 1
		require.NoError(t, Ops(t.Context(), dev, suite.Name, o, anyLimits, silent{}, func(r OpRow) {
			seen[r.Op]++
			assert.Equal(t, "ok", r.Status, "%+v", r)
			assert.NotEmpty(t, r.Variant, r.Op)
			assert.GreaterOrEqual(t, r.Sets, 2, r.Op)
			for _, v := range []float64{r.Time.Median, r.Bytes, r.GBs, r.ShareCopy} {
				assert.Positive(t, v, "%+v", r)
			}
			assert.Equal(t, r.Flop > 0, r.TFLOPs > 0, "%+v", r)
			assert.Equal(t, r.FloorUS > 0, r.FloorLaunches > 0, "%+v", r)
		}))
		for _, op := range SuiteOps(suite.Name) {
			assert.Positive(t, seen[op.Name], "%s has no row in suite %s", op.Name, suite.Name)
		}
	}
}

func TestOpOptionErrors(t *testing.T) {
	dev := testkit.Device(t)
	for arg, o := range map[string]OpOptions{
		"heads":   {Sizes: verify.SizeOptions{Heads: []int{129}}},
		"batch":   {Sizes: verify.SizeOptions{Batches: []int{0}}},
		"prefill": {Sizes: verify.SizeOptions{Prefill: []int{3}}},
		"context": {Sizes: verify.SizeOptions{Contexts: []int{10}}},
		"topk":    {Sizes: verify.SizeOptions{TopK: []int{1 << 17}}},
		"rows":    {Sizes: verify.SizeOptions{Rows: []int{1}}},
		"weights": {Sizes: verify.SizeOptions{Weights: []string{"x"}}},
		"model":   {Models: []string{"x"}},
		"reps":    {Common: Common{Reps: -1}},
		"warmup":  {Common: Common{Warmup: 5000}},
		"op":      {Ops: []string{"indexer_topk", "soup"}},
		"case":    {Cases: []string{"batch=soup"}},
		"variant": {Common: Common{Variant: "soup"}},
	} {
		var bad *vk.ArgumentError
		err := Ops(t.Context(), dev, "indexer", o, Limits{}, silent{}, func(OpRow) { t.Errorf("%s: a row", arg) })
		if assert.ErrorAs(t, err, &bad, arg) {
			assert.Equal(t, arg, bad.Arg)
		}
	}
	err := Ops(t.Context(), dev, "memory", OpOptions{Ops: []string{"indexer_topk"}}, Limits{}, silent{}, nil)
	assert.ErrorIs(t, err, vk.ErrArgument, "an operation of another suite")
}

// A variant has to be one of each operation.
func TestCommonVariants(t *testing.T) {
	find := func(name string) verify.Op { op, _ := verify.Lookup(name); return op }
	for _, c := range []struct {
		variant string
		ops     []string
		ok      bool
	}{
		{"", []string{"indexer_topk"}, true}, {"base", []string{"indexer_topk", "indexer_logits_fp8"}, true}, {"cm", []string{"linear", "indexer_topk"}, false},
		{"twopass-base", []string{decodeOp}, true}, {"twopass-base", []string{decodeOp, "flashmla_sparse_prefill"}, false}, {"soup", []string{"linear"}, false},
	} {
		var ops []verify.Op
		for _, name := range c.ops {
			ops = append(ops, find(name))
		}
		err := Common{Variant: c.variant}.checkVariant("bench", ops)
		var bad *vk.ArgumentError
		assert.Equal(t, c.ok, err == nil, "%q of %v: %v", c.variant, c.ops, err)
		assert.Equal(t, !c.ok, errors.As(err, &bad) && bad.Arg == "variant")
	}
}

// A case is chosen by all parts of one of the names.
func TestHasParts(t *testing.T) {
	const name = "heads=64/topk=512/batch=1"
	for _, c := range []struct {
		any  []string
		want bool
	}{{nil, true}, {[]string{"batch=1"}, true}, {[]string{"batch=1/heads=64"}, true}, {[]string{"batch=1/heads=6"}, false}, {[]string{"batch=2", "topk=512"}, true}, {[]string{""}, false}} {
		assert.Equal(t, c.want, hasParts(name, c.any), "%v", c.any)
	}
}

// Every measurement of others is one of a case that is timed by default, and of a part of it.
func TestPeers(t *testing.T) {
	peers, err := Peers()
	require.NoError(t, err)
	known := map[string]bool{}
	for _, c := range (OpOptions{}).withDefaults(false).cases(SuiteOps(compareSuite)) {
		known[c.op.Name+" "+c.size.Name+" "] = true
		for part := range c.size.Parts {
			known[c.op.Name+" "+c.size.Name+" "+part], known[c.op.Name+" "+c.size.Name+" both"] = true, true
		}
	}
	require.Greater(t, len(peers.Rows), 100)
	for _, r := range peers.Rows {
		assert.True(t, known[r.Op+" "+r.Case+" "+r.Part], "no case %s %s %s", r.Op, r.Case, r.Part)
	}
	got := PeersOf("indexer_topk", "tokens=32/context=131072/k=1024", "")
	require.Len(t, got, 2)
	assert.Equal(t, 26.9, got[0].US)
}

func TestMain(m *testing.M) { testkit.Main(m) }

// TestList holds that the lists of suites are what they time.
func TestList(t *testing.T) {
	listed := func(suite string, ops OpOptions, models LayerOptions) (names []string) {
		list, err := List(suite, ops, models)
		require.NoError(t, err)
		for _, x := range list {
			assert.Equal(t, suite, x.Suite)
			names = append(names, x.Op+" "+x.Case)
		}
		return names
	}
	models := LayerOptions{Models: []string{"pro", "v41-flash"}, Kinds: []string{"c4a", "full2"},
		Batches: []int{1, 2}, Contexts: []int{9, 1}, Prefill: []int{5}, Chunk: 3}
	assert.Equal(t, []string{"prefill model=pro/weights=fp8/tokens=5/chunk=3", "prefill model=v41-flash/weights=fp8/tokens=5/chunk=3"},
		listed("prefill", OpOptions{}, models))
	layers := listed("layer", OpOptions{}, models)
	require.Len(t, layers, 2*(2*2+2), "a kind of each")
	assert.Equal(t, "layer model=v41-flash/kind=full2/weights=fp8/mode=prefill/tokens=2/context=5", layers[11])

	var ran []string
	models.Models, models.Keys, models.Checked = []string{"small"}, 99, true // which no engine takes
	require.ErrorIs(t, Steps(t.Context(), testkit.Device(t), models, anyLimits, silent{},
		func(r StepRow) { ran = append(ran, "step "+r.title()) }), ErrWrong)
	assert.Equal(t, ran, listed("step", OpOptions{}, models))

	for _, suite := range OpSuites {
		names := listed(suite.Name, OpOptions{}, LayerOptions{})
		for _, op := range SuiteOps(suite.Name) {
			found := slices.ContainsFunc(names, func(s string) bool { return strings.HasPrefix(s, op.Name+" ") })
			assert.True(t, found, "%s %s", suite.Name, op.Name)
		}
	}
	peers, err := Peers()
	require.NoError(t, err)
	compared := listed(compareSuite, CompareOptions{Peers: peers}.OpOptions(), LayerOptions{})
	assert.Less(t, len(compared), len(listed(compareSuite, OpOptions{}, LayerOptions{})))
	assert.Contains(t, compared, peers.Rows[0].Op+" "+peers.Rows[0].Case)
	for suite, o := range map[string]LayerOptions{"step": {Batches: []int{0}}, "layer": {Kinds: []string{"x"}}} {
		_, err := List(suite, OpOptions{}, o)
		assert.ErrorIs(t, err, vk.ErrArgument)
	}
	_, err = List("memory", OpOptions{Ops: []string{"x"}}, LayerOptions{})
	assert.ErrorIs(t, err, vk.ErrArgument)
}

// What measures a device multiplies in subgroups of the size that operations multiply in, and
// is refused where its workgroups are too large.
func TestMeasuringKernels(t *testing.T) {
	for _, d := range knowncaps.Devices() {
		if d.Name == "least" {
			_, err := copyBandwidth(t.Context(), testkit.As(t, d), 1)
			assert.ErrorIs(t, err, vk.ErrMissingFeature, d.Name)
			continue
		}
		code, err := kernels.Get("bench_matrix_cm")
		require.NoError(t, err)
		if d.Caps.Missing(code.Requires) != nil {
			continue
		}
		k, err := matrixKernel(testkit.As(t, d), code, d.Caps.CoopMat[0])
		if err != nil {
			t.Errorf("%s: %v", d.Name, err)
		} else if got := k.SubgroupSize(); got != d.Caps.MinSubgroupSize || k.Constants()[3] != 4*got {
			t.Errorf("%s: subgroups of %d, want %d, workgroups of %d", d.Name, got, d.Caps.MinSubgroupSize, k.Constants()[3])
		}
	}
}

// filling returns an operation that fills 64 words with 7s; bind may fail first.
func filling(want int32, bind func() error) verify.Op {
	seven := func(v int32) verify.Arrays {
		return verify.Arrays{"y": vectors.FromI32(slices.Repeat([]int32{v}, 64), 64)}
	}
	return verify.Op{
		Name: "op", Class: verify.ClassExact, Variants: []tuning.Variant{{Name: "base"}},
		Ref: func(verify.Case) (verify.Arrays, error) { return seven(want), nil },
		Bind: func(verify.Build, verify.Case) (verify.Bound, error) {
			return verify.Bound{Variant: "base", Place: func(r *verify.Rig) verify.Launch {
				y := r.Out(tensor.I32, 64)
				return verify.Launch{Out: map[string]tensor.Tensor{"y": y}, Record: func(rec *vk.Recorder) error { return rec.Fill(y.View(), 7) }}
			}}, bind()
		},
		Compare: func(_ verify.Case, got, want verify.Arrays) verify.Result {
			return verify.NewComparison(verify.ClassExact).Exact("y", got["y"], want["y"]).Result()
		},
	}
}

// sevens are cases of filling, with what the i-th should hold.
func sevens(n int, want func(i int) int32, bind func(i int) error) (all []opCase) {
	for i := range n {
		all = append(all, opCase{filling(want(i), func() error { return bind(i) }),
			verify.Size{Name: fmt.Sprint("case ", i), Make: func(*rand.Rand) verify.Case { return verify.Case{} }}})
	}
	return all
}

// Rows keep their order whatever is prepared at a time, and what has not enough memory
// beside others comes again alone.
func TestTimeCases(t *testing.T) {
	dev := testkit.Device(t)
	for together := range 6 {
		var full, builds atomic.Int32 // of case 3, and of case 5
		all := sevens(7, func(i int) int32 { return int32(7 + i/6) }, func(i int) error {
			if i == 3 && full.Add(1) == 1 && together > 1 || i == 5 {
				return fmt.Errorf("case %d: %w", builds.Add(1), vk.ErrOutOfDeviceMemory)
			}
			return nil
		})
		var got []string
		o := OpOptions{Common: Common{Reps: 1, Seed: 1}, together: together}
		err := timeCases(t.Context(), dev, o, all, anyLimits, silent{}, func(r OpRow) {
			got = append(got, strings.TrimPrefix(r.Case, "case ")+" "+r.Status)
			assert.Equal(t, r.Status == "ok", r.Time.Median > 0, "%d at a time: %+v", together, r)
		})
		assert.ErrorIs(t, err, ErrWrong)
		assert.Equal(t, []string{"0 ok", "1 ok", "2 ok", "3 ok", "4 ok", "5 skipped", "6 wrong"}, got, "%d at a time", together)
	}
}

// A case that fails leaves the others, of its batch and after, as they are; a lost device ends the
// run after the row of the case that lost it. An interruption ends it without a row.
func TestTimeCasesFailing(t *testing.T) {
	dev := testkit.Device(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	large := &vk.ArgumentError{Op: "vk: new buffer", Arg: "Size", Got: "9", Want: "at most 8"}
	for _, c := range []struct {
		fail   error
		before func()
		ends   error
		want   []string
	}{
		{large, nil, ErrWrong, []string{"0 ok", "1 failed", "2 ok", "3 ok"}},
		{&vk.MissingError{What: "op"}, nil, ErrWrong, []string{"0 ok", "1 skipped", "2 ok", "3 ok"}},
		{fmt.Errorf("run: %w", vk.ErrDeviceLost), nil, vk.ErrDeviceLost, []string{"0 ok", "1 failed"}},
		{context.Canceled, cancel, context.Canceled, nil},
	} {
		all := sevens(4, func(int) int32 { return 7 }, func(i int) error {
			if i != 1 {
				return nil
			}
			if c.before != nil {
				c.before()
			}
			return c.fail
		})
		var got []string
		err := timeCases(ctx, dev, OpOptions{Common: Common{Reps: 1, Seed: 1}, together: 3}, all, anyLimits, silent{}, func(r OpRow) {
			got = append(got, strings.TrimPrefix(r.Case, "case ")+" "+r.Status)
			if r.Status != "ok" {
				assert.Equal(t, c.fail.Error(), r.Detail)
			}
		})
		require.ErrorIs(t, err, c.ends)
		assert.Equal(t, c.want, got, c.fail)
	}
}
