package verify

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "indexer_topk", Class: ClassSet, Variants: indexer.TopKVariants,
		Random: randomIndexerTopK, Ref: refIndexerTopK, Run: runIndexerTopK, Compare: compareIndexerTopK,
	})
}

// randomIndexerTopK makes rows of every kind: shorter than k and longer, with ties
// at the last place, infinities, NaNs and both zeros. Behind a row's length lies
// what would be selected if it were read. Some cases ask for sliced rows or for a
// size of workgroup, which a device would not choose for rows that short.
func randomIndexerTopK(seed uint64) []Case {
	var cases []Case
	for i, s := range []struct{ rows, n, k, workgroups, threads int }{
		{1, 1, 1, 0, 0}, {2, 17, 2, 0, 0}, {17, 69, 61, 0, 0}, {61, 321, 69, 0, 0}, {3, 3000, 512, 0, 0}, {2, 2500, 1024, 0, 1024},
		{5, 6000, 321, 0, 64}, {1, 40000, 512, 0, 0}, {2, 70000, 1024, 64, 0}, {1, 140000, 2048, 64, 1024}, {69, 700, 512, 1, 256},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		logits, lens := make([]float32, s.rows*s.n), make([]int32, s.rows)
		for t := range lens {
			lens[t] = int32(s.n - rng.IntN(s.n/3+1))
			switch {
			case s.rows > 4 && rng.IntN(4) == 0:
				lens[t] = int32(rng.IntN(s.n + 1))
			case s.rows > 16 && rng.IntN(8) == 0:
				lens[t] = []int32{0, -1, math.MinInt32, math.MaxInt32}[rng.IntN(4)]
			}
			kind := rng.IntN(4)
			for j := range s.n {
				x := &logits[t*s.n+j]
				switch v := rng.NormFloat64(); kind {
				case 0:
					*x = float32(v)
				case 1: // few values
					*x = float32(math.Round(v*3) / 3)
				case 2: // near each other
					*x = 1000 + float32(v)/64
				case 3: // growing
					*x = float32(j) + float32(v)
				}
				switch rng.IntN(64) {
				case 0:
					inf := float32(math.Inf(1))
					*x = []float32{float32(math.NaN()), -inf, inf, 0, float32(math.Copysign(0, -1)), math.SmallestNonzeroFloat32}[rng.IntN(6)]
				}
				if j >= int(lens[t]) {
					*x = float32(math.Inf(1))
				}
			}
		}
		cases = append(cases, Case{
			Name:   fmt.Sprintf("r%d_n%d_k%d_w%d_t%d", s.rows, s.n, s.k, s.workgroups, s.threads),
			Params: map[string]any{"k": s.k, "workgroups": s.workgroups, "threads": s.threads},
			In:     Arrays{"logits": vectors.FromF32(logits, s.rows, s.n), "lengths": vectors.FromI32(lens, s.rows)},
		})
	}
	return cases
}

func indexerTopKInput(c Case) (logits, lens Array, k int, err error) {
	in := c.Input()
	logits = in.Array("logits", vectors.F32, -1, -1)
	lens = in.Array("lengths", vectors.I32, logits.Dim(0))
	return logits, lens, in.Int("k"), in.Err()
}

func refIndexerTopK(c Case) (Arrays, error) {
	logits, lens, k, err := indexerTopKInput(c)
	if err != nil {
		return nil, err
	}
	return Arrays{"topk_indices": vectors.FromI32(indexer.TopKRef(logits.F32(), logits.Dim(1), lens.I32(), k), lens.Dim(0), k)}, nil
}

func runIndexerTopK(ctx context.Context, dev *vk.Device, variant string, c Case) (Arrays, error) {
	logits, lens, k, err := indexerTopKInput(c)
	if err != nil {
		return nil, err
	}
	in := c.Input()
	op, err := indexer.NewTopK(dev, indexer.TopKConfig{K: k, Variant: variant,
		Workgroups: in.IntOr("workgroups", 0), Threads: min(in.IntOr("threads", 0), int(dev.Caps().MaxWorkgroupInvocations))})
	if err != nil {
		return nil, err
	}
	r := NewRig(ctx, dev)
	defer r.Close()
	a := indexer.TopKArgs{Logits: r.In(logits, tensor.F32), Lens: r.In(lens, tensor.I32), Out: r.Out(tensor.I32, lens.Dim(0), k)}
	if n := op.ScratchBytes(logits.Dim(0), logits.Dim(1)); n > 0 && r.Err() == nil {
		a.Scratch = r.Out(tensor.U8, int(n)).View()
	}
	a.Arrived = r.In(vectors.FromI32(make([]int32, lens.Dim(0)), lens.Dim(0)), tensor.I32)
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return r.Results(map[string]tensor.Tensor{"topk_indices": a.Out})
}

// compareIndexerTopK demands the indices themselves of random cases. The order of
// recorded ones and the choice among equals are arbitrary: there it demands the same
// selection of values, the largest, of both, and of what was computed our order.
func compareIndexerTopK(c Case, got, want Arrays) Result {
	logits, lens, _, err := indexerTopKInput(c)
	cmp := NewComparison(ClassSet)
	if err != nil {
		return cmp.Fail("%v", err).Result()
	}
	if c.Source == "random" {
		return cmp.Exact("topk_indices", got["topk_indices"], want["topk_indices"]).Result()
	}
	if !cmp.same("topk_indices", got["topk_indices"], want["topk_indices"]) {
		return cmp.Result()
	}
	cmp.TopK("topk_indices", logits, lens.I32(), got["topk_indices"]).ascending("topk_indices", got["topk_indices"])
	return cmp.TopK("recorded topk_indices", logits, lens.I32(), want["topk_indices"]).Result()
}

// ascending demands that the entries of every row [R, k] ascend, with -1 behind them.
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
