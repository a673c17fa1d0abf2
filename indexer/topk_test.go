package indexer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestTopK(t *testing.T) { testkit.TestOp(t, "indexer_topk") }

// runTopK selects without counters of slices and with them, which has to give the same.
func runTopK(t *testing.T, dev *vk.Device, op *indexer.TopK, logits []float32, n int, lens []int32) []int32 {
	t.Helper()
	run := func(counted bool) []int32 {
		r := verify.NewRig(t.Context(), dev)
		defer r.Close()
		a := indexer.TopKArgs{Logits: r.In(vectors.FromF32(logits, len(lens), n), tensor.F32), Lens: r.In(vectors.FromI32(lens, len(lens)), tensor.I32),
			Out: r.Out(tensor.I32, len(lens), op.K())}
		if need := op.ScratchBytes(len(lens), n); need > 0 && r.Err() == nil {
			a.Scratch = r.Out(tensor.U8, int(need)).View()
		}
		zeros := r.In(vectors.FromI32(make([]int32, len(lens)), len(lens)), tensor.I32)
		if counted {
			a.Arrived = zeros
		}
		r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
		got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out, "arrived": zeros}))
		if i := slices.IndexFunc(got["arrived"].I32(), func(n int32) bool { return n != 0 }); i >= 0 {
			t.Errorf("counter of row %d is %d", i, got["arrived"].I32()[i])
		}
		return got["out"].I32()
	}
	got := run(true)
	assert.True(t, slices.Equal(got, run(false)), "the selection differs without counters")
	return got
}

// Small rows whose selection is known.
func TestTopKRef(t *testing.T) {
	nan, pinf, minus0 := float32(math.NaN()), inf(1), float32(math.Copysign(0, -1))
	for _, c := range []struct {
		name string
		row  []float32
		len  int32
		k    int
		want []int32
	}{
		{"largest", []float32{1, 5, -3, 4, 2}, 5, 2, []int32{1, 3}},
		{"ties to the smaller column", []float32{2, 7, 7, 7, 2}, 5, 2, []int32{1, 2}},
		{"ties at the last place", []float32{3, 1, 9, 3, 3}, 5, 3, []int32{0, 2, 3}},
		{"both zeros are equal", []float32{minus0, -1, 0, minus0, 0}, 5, 3, []int32{0, 2, 3}},
		{"NaN is -Inf", []float32{nan, -pinf, nan, -1e38, -pinf}, 5, 3, []int32{0, 1, 3}},
		{"infinities", []float32{pinf, 3e38, nan, pinf, -pinf}, 5, 3, []int32{0, 1, 3}},
		{"negative NaN too", []float32{math.Float32frombits(0xFFFFFFFF), 0, 1}, 3, 2, []int32{1, 2}},
		{"denormals", []float32{1e-45, 0, 2e-45, -1e-45}, 4, 2, []int32{0, 2}},
		{"not more than k", []float32{1, 2, 3, 4}, 3, 3, []int32{0, 1, 2}},
		{"short row", []float32{nan, 2, 9, 9}, 2, 3, []int32{0, 1, -1}},
		{"empty row", []float32{1, 2}, 0, 2, []int32{-1, -1}},
		{"negative length", []float32{1, 2}, -7, 1, []int32{-1}},
		{"length beyond the row", []float32{1, 3, 2}, math.MaxInt32, 1, []int32{1}},
		{"one column", []float32{1}, 1, 1, []int32{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, indexer.TopKRef(c.row, len(c.row), []int32{c.len}, c.k))
		})
	}
}

// A recording made for long rows serves short ones: the lengths are read when it
// runs, and a row that fits one workgroup is not sliced.
func TestTopKReadsLensAtRun(t *testing.T) {
	testkit.WithoutMatrices(t)
	for _, c := range []struct {
		n, workgroups int
		counted       bool
	}{{140000, 8, false}, {33824, 8, true}, {9220, 8, true}, {70004, 16, true}, {4100, 8, true}} {
		t.Run(fmt.Sprintf("%d/%d/%t", c.n, c.workgroups, c.counted), func(t *testing.T) { topKReadsLens(t, c.n, c.workgroups, c.counted) })
	}
}

func topKReadsLens(t *testing.T, n, workgroups int, counted bool) {
	dev := testkit.Device(t)
	const k = 61
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64())
	}
	op := must[*indexer.TopK](t)(indexer.NewTopK(dev, indexer.TopKConfig{K: k, Workgroups: workgroups}))
	lens := testkit.Upload(t, dev, tensor.I32, []int32{0}, 1)
	out := testkit.Upload(t, dev, tensor.I32, make([]int32, k), 1, k)
	a := indexer.TopKArgs{Logits: testkit.Upload(t, dev, tensor.F32, logits, 1, n), Lens: lens, Out: out}
	if need := int(op.ScratchBytes(1, n)); need > 0 {
		a.Scratch = testkit.Upload(t, dev, tensor.U8, make([]byte, need), need).View()
	}
	if counted {
		a.Arrived = testkit.Upload(t, dev, tensor.I32, make([]int32, 1), 1)
	}
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	require.NoError(t, op.Record(rec, a))
	cmd := must[*vk.Commands](t)(rec.End())
	defer cmd.Close()
	for _, l := range []int32{int32(n), 0, 60, 61, 62, 63, 65, 4096, 5000, 9215, 9216, 9217, 9250, 29000, 30000, 32768, 32769, 100001, int32(n) - 1, int32(n)} {
		require.NoError(t, lens.Upload(t.Context(), le(l)))
		for range 2 { // the same again in a second run
			require.NoError(t, cmd.Run(t.Context()))
			got, want := testkit.Download[int32](t, out), indexer.TopKRef(logits, n, []int32{l}, k)
			assert.True(t, slices.Equal(got, want), "length %d: got %v, want %v", l, got, want)
		}
	}
}

func TestTopKArguments(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	testkit.Rejects(t, dev, indexer.NewTopK, map[string]indexer.TopKConfig{
		"no K": {}, "K": {K: -1}, "large K": {K: indexer.MaxK + 1}, "Workgroups": {K: 1, Workgroups: -1},
		"Threads": {K: 1, Threads: 96}, "few": {K: 1, Threads: 32}, "many": {K: 1, Threads: 1 << 20},
	})
	op := must[*indexer.TopK](t)(indexer.NewTopK(dev, indexer.TopKConfig{K: 16, Workgroups: 64}))
	mem := func(dt tensor.DType, shape ...int) tensor.Tensor { return testkit.Zeros(t, dev, dt, shape...) }
	const n = 40000
	good := indexer.TopKArgs{Logits: mem(tensor.F32, 2, n), Lens: mem(tensor.I32, 2), Out: mem(tensor.I32, 2, 16), Scratch: mem(tensor.U8, int(op.ScratchBytes(2, n))).View()}
	require.NotEqual(t, uint64(0), op.ScratchBytes(2, n), "rows are not sliced")
	type topkArgs = indexer.TopKArgs
	testkit.Changes[topkArgs]{
		"Logits":  {func(a *topkArgs) { a.Logits.Shape = []int{2 * n} }},
		"Scratch": {func(a *topkArgs) { a.Scratch.Size-- }, func(a *topkArgs) { a.Scratch = vk.View{} }},
		"Arrived": {func(a *topkArgs) { a.Arrived = mem(tensor.I32, 1) }},
	}.Refuse(t, dev, op.Record, good)
	do(t, dev, func(rec *vk.Recorder) error { // no rows: nothing to do
		a := good
		a.Logits.Shape, a.Lens.Shape, a.Out.Shape = []int{0, n}, []int{0}, []int{0, 16}
		return op.Record(rec, a)
	})
}

// le is a number as the device reads it.
func le(v int32) []byte { return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)} }

func inf(sign int) float32 { return float32(math.Inf(sign)) }

// The device's choice of shapes and others than that of a CPU select the same as the reference:
// every k around sizes at which the kernels change, widths at which other kernels are taken, and
// long rows, in one piece and sliced, that make the most work: memory that fills again and again,
// and values that are all the same.
func TestTopKTunings(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	check := func(tuning string, n, k, workgroups int, value func(i int) float32) {
		cfg := indexer.TopKConfig{K: k, Workgroups: workgroups}
		op, err := indexer.NewTopK(dev, cfg)
		if tuning != "" {
			op, err = indexer.NewTunedTopK(dev, cfg, tuning)
		}
		require.NoError(t, err)
		lens := []int32{int32(n), int32(k + 1 + rng.IntN(n-k)), 0}
		logits := make([]float32, len(lens)*n)
		for r := range lens {
			for i := range n {
				if logits[r*n+i] = value(i); i >= int(lens[r]) {
					logits[r*n+i] = inf(1)
				}
			}
		}
		assert.True(t, slices.Equal(runTopK(t, dev, op, logits, n, lens), indexer.TopKRef(logits, n, lens, k)),
			"%s: %d of %d columns, lengths %d, %d workgroups: the selection differs", tuning, k, n, lens, workgroups)
	}
	ties := func(int) float32 { // and others
		if rng.IntN(2) == 0 {
			return float32(rng.IntN(7))
		}
		return float32(rng.NormFloat64())
	}
	for _, k := range []int{1, 2, 3, 31, 63, 64, 65, 127, 512, 1000, 1023, 1024, 1025, 1365, 1366, 2047, 2048} {
		for _, workgroups := range []int{1, 64} { // many rows, few rows
			check("", 5000, k, workgroups, ties)
		}
	}
	for _, tuning := range indexer.TopKTunings {
		for _, c := range []struct{ n, k, workgroups int }{
			{4096, 512, 0}, {4098, 61, 0}, {8192, 1024, 0}, {16381, 1000, 0}, {20000, 321, 1}, {32768, 1024, 64}, {70001, 512, 64}, {17004, 2, 2},
		} {
			check(tuning, c.n, c.k, c.workgroups, ties)
		}
	}
	for _, value := range []func(i int) float32{
		func(i int) float32 { return float32(i) }, func(i int) float32 { return -float32(i) }, func(i int) float32 { return 0.25 },
		func(i int) float32 { return float32(math.Copysign(0, float64(i%2)-0.5)) },
		func(i int) float32 { return float32(math.NaN()) }, func(i int) float32 { return float32(i / 40000) },
		func(i int) float32 { // a cluster
			if i >= 65800 && i < 65800+512 {
				return math.Nextafter32(1, 2)
			}
			return 1
		},
	} {
		for _, workgroups := range []int{1, 2, 1024} {
			check("", 70001, 512, workgroups, value)
		}
	}
}

// Selections by the tops of tiles, with what a row does not have poisoned: rows of all
// lengths around K and whole tiles, ties across tiles, equal rows, infinities and NaN.
func TestTopKTiles(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 31))
	for _, c := range []struct{ n, k, tile int }{
		{4096, 64, 16}, {4100, 64, 8}, {20480, 512, 16}, {2048, 1, 16}, {1024, 100, 8}, {9232, 2048, 4}, {40, 3, 16}, {4, 1, 8},
	} {
		record, ok, err := indexer.TilesTopK(dev, c.k, c.tile)
		require.NoError(t, err)
		if !ok {
			t.Skip("the device cannot")
		}
		t.Run(fmt.Sprintf("n=%d/k=%d/tile=%d", c.n, c.k, c.tile), func(t *testing.T) {
			lens := []int32{int32(c.n), 0, -1, 1, int32(c.k), int32(c.k + 1), int32(c.n - 1), int32(c.n + 5), int32(c.k * c.tile), int32(c.k*c.tile + 1), int32(rng.IntN(c.n))}
			width := (c.n + c.tile*4 - 1) / (c.tile * 4) * 4
			logits, tops := make([]float32, len(lens)*c.n), make([]int32, len(lens)*width)
			for r := range lens {
				row := logits[r*c.n:][:c.n]
				for i := range row {
					switch {
					case r%4 == 1:
						row[i] = 2 // all tie
					case r%4 == 2:
						row[i] = float32(rng.IntN(5) - 2)
					case r%4 == 3 && i%3 == 0:
						row[i] = []float32{float32(math.Inf(-1)), float32(math.NaN()), float32(math.Copysign(0, -1)), 0}[rng.IntN(4)]
					default:
						row[i] = float32(rng.NormFloat64())
					}
				}
				end := min(max(int(lens[r]), 0), c.n)
				for i := range width {
					tops[r*width+i] = math.MaxInt32
				}
				for i := 0; i*c.tile < end; i++ {
					top := int32(math.MinInt32)
					for _, v := range row[i*c.tile : min((i+1)*c.tile, end)] {
						if v != v {
							v = float32(math.Inf(-1))
						}
						x := int32(math.Float32bits(v))
						top = max(top, x^(x>>31&math.MaxInt32))
					}
					tops[r*width+i] = top
				}
				for i := end; i < c.n; i++ {
					row[i] = float32(math.Inf(1))
				}
			}
			out := testkit.Upload(t, dev, tensor.I32, slices.Repeat([]int32{-7}, len(lens)*c.k), len(lens), c.k)
			l, tp, ln := testkit.Upload(t, dev, tensor.F32, logits, len(lens), c.n), testkit.Upload(t, dev, tensor.I32, tops, len(lens), width), testkit.Upload(t, dev, tensor.I32, lens, len(lens))
			do(t, dev, func(rec *vk.Recorder) error { return record(rec, l, tp, ln, out) })
			got, want := testkit.Download[int32](t, out), indexer.TopKRef(logits, c.n, lens, c.k)
			for r := range lens {
				if !slices.Equal(got[r*c.k:][:c.k], want[r*c.k:][:c.k]) {
					t.Errorf("row %d of length %d: the selection differs", r, lens[r])
				}
			}
		})
	}
}
