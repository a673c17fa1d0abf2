package verify

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "indexer_topk", Class: ClassSet, Variants: opkit.Builds("idx_topk"),
		Of:     Of{"indexer.TopK", topkKernels, "indexer.select"},
		Random: randomIndexerTopK, Ref: refBy(fields, refIndexerTopK), Bind: bindBy(fields, bindIndexerTopK),
		Compare: compareBy(ClassSet, fields, compareIndexerTopK),
		Timing:  Timing{Suite: "indexer", Sizes: topkSizes, Axes: map[string]string{"logits": "T", "lengths": "T", "topk_indices": "T"}},
	})
}

// randomIndexerTopK makes rows of every kind: shorter than k and longer, with ties
// at the last place. Some cases ask for sliced rows or for a size of workgroup,
// which a device would not choose for rows that short.
func randomIndexerTopK(seed uint64) []Case {
	return randomScores(seed, []scoreSize{
		{1, 1, 1, 0, 0}, {2, 17, 2, 0, 0}, {17, 69, 61, 0, 0}, {61, 321, 69, 0, 0}, {3, 3000, 512, 0, 0}, {2, 2500, 1024, 0, 1024},
		{5, 6000, 321, 0, 64}, {1, 40000, 512, 0, 0}, {2, 70000, 1024, 64, 0}, {1, 140000, 2048, 64, 1024}, {69, 700, 512, 1, 256},
	}, math.SmallestNonzeroFloat32, []scoreKind{
		func(_ *rand.Rand, row []float32, j int, v float64) { row[j] = float32(v) },
		func(_ *rand.Rand, row []float32, j int, v float64) { row[j] = float32(math.Round(v*3) / 3) }, // few values
		func(_ *rand.Rand, row []float32, j int, v float64) { row[j] = 1000 + float32(v)/64 },         // near each other
		func(_ *rand.Rand, row []float32, j int, v float64) { row[j] = float32(j) + float32(v) },      // growing
	})
}

type (
	// scoreSize is the size of a selection, and what it asks of the op.
	scoreSize struct{ rows, n, k, workgroups, threads int }

	// scoreKind writes number j of a row, after those before it, from a normal one.
	scoreKind func(rng *rand.Rand, row []float32, j int, v float64)
)

// randomScores makes rows, each of one of some kinds, with infinities, NaNs, both zeros and the
// number odd strewn in. After a row's length lies what would be selected if it were read.
func randomScores(seed uint64, sizes []scoreSize, odd float32, kinds []scoreKind) []Case {
	inf := float32(math.Inf(1))
	strewn := []float32{float32(math.NaN()), -inf, inf, 0, float32(math.Copysign(0, -1)), odd}
	return casesOf(seed, sizes, func(rng *rand.Rand, i int, s scoreSize) Case {
		logits, lens := make([]float32, s.rows*s.n), make([]int32, s.rows)
		for t := range lens {
			lens[t] = int32(s.n - rng.IntN(s.n/3+1))
			switch {
			case s.rows > 4 && rng.IntN(4) == 0:
				lens[t] = int32(rng.IntN(s.n + 1))
			case s.rows > 16 && rng.IntN(8) == 0:
				lens[t] = []int32{0, -1, math.MinInt32, math.MaxInt32}[rng.IntN(4)]
			}
			row, kind := logits[t*s.n:][:s.n], kinds[rng.IntN(len(kinds))]
			for j := range row {
				kind(rng, row, j, rng.NormFloat64())
				if rng.IntN(64) == 0 {
					row[j] = strewn[rng.IntN(len(strewn))]
				}
				if j >= int(lens[t]) {
					row[j] = inf
				}
			}
		}
		return Case{
			Name:   fmt.Sprintf("r%d_n%d_k%d_w%d_t%d", s.rows, s.n, s.k, s.workgroups, s.threads),
			Params: map[string]any{"k": s.k, "workgroups": s.workgroups, "threads": s.threads},
			In:     Arrays{"logits": vectors.FromF32(logits, s.rows, s.n), "lengths": vectors.FromI32(lens, s.rows)},
		}
	})
}

// topkInput is a selection, and what it asks of the operation.
type topkInput struct {
	Logits     Array `in:"logits f32 R N"`
	Lens       Array `in:"lengths i32 R"`
	K          int   `in:"k"`
	Workgroups int   `in:"workgroups=0"`
	Threads    int   `in:"threads=0"`
	Block      int   `in:"block=8"` // of candidate blocks

	R, N int
}

func refIndexerTopK(x topkInput) (Arrays, error) {
	return Arrays{"topk_indices": vectors.FromI32(indexer.TopKRef(x.Logits.F32(), x.N, x.Lens.I32(), x.K), x.R, x.K)}, nil
}

func bindIndexerTopK(b Build, x topkInput) (Bound, error) {
	op, err := indexer.NewTopK(b.Dev, indexer.TopKConfig{K: x.K, Variant: b.Variant,
		Workgroups: x.Workgroups, Threads: x.threadsOn(b.Dev)})
	return bound(op, err, func(r *Rig) Launch {
		a := indexer.TopKArgs{Logits: r.In(x.Logits, tensor.F32), Lens: r.Shared(x.Lens, tensor.I32), Out: r.Out(tensor.I32, x.R, x.K),
			Scratch: r.Scratch(op.ScratchBytes(x.R, x.N)), Arrived: r.Shared(vectors.New(vectors.I32, x.R), tensor.I32)}
		return launch(op, a, outs{"topk_indices": a.Out})
	})
}

// threadsOn returns the threads that a case asks for, 0 where the device has fewer.
func (x *topkInput) threadsOn(dev *vk.Device) int {
	if x.Threads > 0 && x.Threads > int(dev.Caps().MaxWorkgroupInvocations) {
		return 0
	}
	return x.Threads
}

// topkSizes are rows of as many scores as a context has entries.
func topkSizes(o SizeOptions) (all []Size) {
	for _, t := range o.batches() {
		for _, context := range o.contexts() {
			for _, k := range o.pick(o.TopK, []int{512, 1024}, []int{512}) {
				n := context / 4
				bytes := 4 * t * (n + 1 + k)
				all = append(all, Size{
					Name: fmt.Sprintf("tokens=%d/context=%d/k=%d", t, context, k), Work: Work{Bytes: float64(bytes)}, Touched: bytes,
					Make: func(rng *rand.Rand) Case {
						return Case{Params: map[string]any{"k": k}, In: Arrays{
							"logits": normalF32(rng, t, n), "lengths": vectors.FromI32(slices.Repeat([]int32{int32(n)}, t), t)}}
					},
				})
			}
		}
	}
	return all
}

// compareIndexerTopK demands the indices themselves of random cases. The order of
// recorded ones and the choice among equals are arbitrary: there it demands the same
// selection of values, the largest, of both, and of what was computed our order.
func compareIndexerTopK(cmp *Comparison, c Case, x topkInput, gotAll, wantAll Arrays) {
	got, want := gotAll["topk_indices"], wantAll["topk_indices"]
	if c.Source == "random" {
		cmp.Exact("topk_indices", got, want)
	} else if cmp.Same("topk_indices", got, want) {
		cmp.TopK("topk_indices", x.Logits, x.Lens.I32(), got).ascending("topk_indices", got)
		cmp.TopK("recorded topk_indices", x.Logits, x.Lens.I32(), want)
	}
}

// ascending demands that the entries of every row [R, k] ascend, with -1 after them.
func (c *Comparison) ascending(name string, got Array) *Comparison {
	k, all := got.Dim(1), got.I32()
	for i, v := range all {
		if i%k > 0 {
			if before := all[i-1]; v <= before && v != -1 || before == -1 && v != -1 {
				return c.Fail("%s: %d follows %d at %s", name, v, before, position(i, got.Shape))
			}
		}
	}
	return c
}
