package verify

import (
	"errors"
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
		Name: "candidate_blocks", Class: ClassExact, Variants: indexer.TopKVariants,
		Random: randomCandidates, Ref: refCandidates, Bind: bindCandidates, Compare: exactly("candidate_blocks", "candidate_columns"),
	})
}

// randomCandidates makes rows whose blocks tie, rows of negative scores, of equal ones, and with
// NaN and infinities. Behind a row's length lies what would be selected if it were read.
func randomCandidates(seed uint64) []Case {
	var cases []Case
	for i, s := range []struct{ rows, n, k, workgroups, threads int }{
		{1, 8, 1, 0, 0}, {2, 16, 1, 0, 0}, {17, 72, 3, 0, 0}, {61, 328, 6, 0, 0}, {69, 704, 17, 1, 256}, {3, 3000, 2048, 0, 0},
		{2, 40000, 321, 0, 0}, {1, 70000, 2048, 64, 0}, {5, 6000, 61, 0, 64},
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
			kind := rng.IntN(5)
			for j := range s.n {
				x := &logits[t*s.n+j]
				switch v := rng.NormFloat64(); kind {
				case 0:
					*x = float32(v)
				case 1: // few values
					*x = float32(math.Round(v*3) / 3)
				case 2: // all negative
					*x = -1000 - float32(math.Abs(v))
				case 3: // a large entry in a poor block: the mean and the maximum disagree
					*x = float32(v)
					if rng.IntN(16) == 0 {
						*x += 10
						logits[t*s.n+j/8*8] = -100
					}
				case 4: // falling: the newest block is the worst
					*x = float32(v) - float32(j)
				}
				if rng.IntN(64) == 0 {
					inf := float32(math.Inf(1))
					*x = []float32{float32(math.NaN()), -inf, inf, 0, float32(math.Copysign(0, -1)), math.MaxFloat32}[rng.IntN(6)]
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

func refCandidates(c Case) (Arrays, error) {
	logits, lens, k, err := indexerTopKInput(c)
	if err != nil {
		return nil, err
	}
	blocks, columns := indexer.CandidatesRef(logits.F32(), logits.Dim(1), lens.I32(), k)
	t := lens.Dim(0)
	return Arrays{"candidate_blocks": vectors.FromI32(blocks, t, k), "candidate_columns": vectors.FromI32(columns, t)}, nil
}

func bindCandidates(b Build, c Case) (Bound, error) {
	logits, lens, k, err := indexerTopKInput(c)
	if err != nil {
		return Bound{}, err
	}
	in := c.Input()
	op, err := indexer.NewCandidates(b.Dev, indexer.CandidatesConfig{K: k, Variant: b.Variant,
		Workgroups: in.IntOr("workgroups", 0), Threads: min(in.IntOr("threads", 0), int(b.Dev.Caps().MaxWorkgroupInvocations))})
	if arg := new(vk.ArgumentError); errors.As(err, &arg) && arg.Arg == "K" {
		return Bound{}, fmt.Errorf("%w: %w", errUnfit, err)
	}
	if err != nil {
		return Bound{}, err
	}
	rows, n := lens.Dim(0), logits.Dim(1)
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := indexer.CandidatesArgs{Logits: r.In(logits, tensor.F32), Lens: r.In(lens, tensor.I32),
			Out:     indexer.CandidateBlocks{Blocks: r.Out(tensor.I32, rows, k), Columns: r.Out(tensor.I32, rows)},
			Scratch: r.Scratch(op.ScratchBytes(rows, n)), Arrived: r.Shared(vectors.FromI32(make([]int32, rows), rows), tensor.I32)}
		return Launch{Out: map[string]tensor.Tensor{"candidate_blocks": a.Out.Blocks, "candidate_columns": a.Out.Columns},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}
