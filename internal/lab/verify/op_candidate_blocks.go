package verify

import (
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

// randomCandidates makes rows whose blocks tie, rows of negative scores, of equal ones, and some
// where the newest block is the worst.
func randomCandidates(seed uint64) []Case {
	return randomScores(seed, []scoreSize{
		{1, 8, 1, 0, 0}, {2, 16, 1, 0, 0}, {17, 72, 3, 0, 0}, {61, 328, 6, 0, 0}, {69, 704, 17, 1, 256}, {3, 3000, 2048, 0, 0},
		{2, 40000, 321, 0, 0}, {1, 70000, 2048, 64, 0}, {5, 6000, 61, 0, 64},
	}, math.MaxFloat32, []scoreKind{
		func(_ *rand.Rand, row []float32, j int, v float64) { row[j] = float32(v) },
		func(_ *rand.Rand, row []float32, j int, v float64) { row[j] = float32(math.Round(v*3) / 3) }, // few values
		func(_ *rand.Rand, row []float32, j int, v float64) { row[j] = -1000 - float32(math.Abs(v)) }, // all negative
		func(rng *rand.Rand, row []float32, j int, v float64) { // a large entry in a poor block: mean and maximum disagree
			row[j] = float32(v)
			if rng.IntN(16) == 0 {
				row[j] += 10
				row[j/8*8] = -100
			}
		},
		func(_ *rand.Rand, row []float32, j int, v float64) { row[j] = float32(v) - float32(j) }, // falling
	})
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
	if err != nil {
		return Bound{}, unfitK(err)
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
