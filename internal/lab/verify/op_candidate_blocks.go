package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "candidate_blocks", Class: ClassExact, Variants: opkit.Builds("idx_topk"),
		Of:     Of{"indexer.Candidates", "idx_candidates", ""},
		Random: randomCandidates, Ref: refBy(fields, refCandidates),
		Bind: bindBy(fields, bindCandidates), Compare: exactly("candidate_blocks", "candidate_columns"),
	})
}

// randomCandidates makes rows whose blocks tie, rows of negative scores, of equal ones, and some
// where the newest block is the worst.
func randomCandidates(seed uint64) []Case {
	cases := randomScores(seed, []scoreSize{
		{1, 8, 1, 0, 0}, {2, 16, 1, 0, 0}, {17, 72, 3, 0, 0}, {61, 328, 6, 0, 0}, {69, 704, 17, 1, 256}, {3, 3000, 2048, 0, 0},
		{2, 40000, 321, 0, 0}, {1, 70000, 2048, 64, 0}, {5, 6000, 61, 0, 64}, {3, 4, 2, 0, 0}, {17, 340, 61, 0, 0}, {5, 332, 17, 0, 0},
		{3, 704, 69, 0, 0}, {2, 4096, 17, 0, 0}, {2, 832, 3, 0, 0}, {17, 6400, 61, 1, 0},
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
	for i, block := range []int{1, 1, 2, 4, 16, 32, 64} { // of the last ones
		c := &cases[len(cases)-7+i]
		c.Params["block"], c.Name = block, fmt.Sprintf("%s_block%d", c.Name, block)
	}
	return cases
}

// candidateBlock is the number of entries of a block, unless a case says another.
const candidateBlock = 8

func refCandidates(x topkInput) (Arrays, error) {
	blocks, columns := indexer.CandidatesRef(x.Logits.F32(), x.N, x.Lens.I32(), x.K, x.Block)
	return Arrays{"candidate_blocks": vectors.FromI32(blocks, x.R, x.K), "candidate_columns": vectors.FromI32(columns, x.R)}, nil
}

func bindCandidates(b Build, x topkInput) (Bound, error) {
	op, err := indexer.NewCandidates(b.Dev, indexer.CandidatesConfig{K: x.K, Block: x.Block, Variant: b.Variant,
		Workgroups: x.Workgroups, Threads: x.threadsOn(b.Dev)})
	return bound(op, err, func(r *Rig) Launch {
		a := indexer.CandidatesArgs{Logits: r.In(x.Logits, tensor.F32), Lens: r.In(x.Lens, tensor.I32),
			Out:     indexer.CandidateBlocks{Blocks: r.Out(tensor.I32, x.R, x.K), Columns: r.Out(tensor.I32, x.R)},
			Scratch: r.Scratch(op.ScratchBytes(x.R, x.N)), Arrived: r.Shared(vectors.New(vectors.I32, x.R), tensor.I32)}
		return launch(op, a, outs{"candidate_blocks": a.Out.Blocks, "candidate_columns": a.Out.Columns})
	})
}
