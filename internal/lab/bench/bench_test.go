package bench

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// anyLimits are limits for tests that time nothing in earnest.
var anyLimits = Limits{CopyGBs: 1, MatrixTFLOPs: 1}

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
	l, err := Measure(t.Context(), testkit.Device(t), 2, Silent{})
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
		require.NoError(t, Ops(t.Context(), dev, suite.Name, o, anyLimits, Silent{}, func(r OpRow) {
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
		err := Ops(t.Context(), dev, "indexer", o, Limits{}, Silent{}, func(OpRow) { t.Errorf("%s: a row", arg) })
		if assert.ErrorAs(t, err, &bad, arg) {
			assert.Equal(t, arg, bad.Arg)
		}
	}
	err := Ops(t.Context(), dev, "memory", OpOptions{Ops: []string{"indexer_topk"}}, Limits{}, Silent{}, nil)
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
