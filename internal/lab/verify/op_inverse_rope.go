package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "inverse_rope", Class: ClassExact, Variants: opkit.Builds("proj_inverse_rope"),
		Of:     Of{"projection.InverseRope", "proj_inverse_rope", "inverse_rope"},
		Random: randomInverseRope, Ref: refInverseRope, Bind: bindInverseRope, Compare: exactly("o_out"),
		Timing: Timing{Suite: "memory", Sizes: inverseRopeSizes, Axes: map[string]string{"o": "T", "positions": "T", "o_out": "T"}},
	})
}

func randomInverseRope(seed uint64) []Case {
	var cases []Case
	add := func(tokens, heads int) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		table, positions := randomTurns(rng, tokens)
		cases = append(cases, Case{
			Name: fmt.Sprintf("t%d_h%d", tokens, heads),
			In: Arrays{"o": reshaped(randomRows(rng, tokens*heads), tokens, heads, cache.D),
				"positions": positions, "cos_sin_rows": table},
		})
	}
	for i, tokens := range sizes {
		add(tokens, []int{64, 128, 5, 17, 8, 1}[i])
		add(tokens, []int{1, 3, 64, 2, 16, 3}[i])
	}
	return cases
}

// outputInput is the attention's output and what turns it back.
type outputInput struct{ o, positions, table Array }

func readOutput(c Case, in *vectors.Input) (x outputInput, err error) {
	x.o = in.Array("o", vectors.U16, -1, -1, cache.D)
	positions := in.Array("positions", vectors.I64, x.o.Dim(0))
	x.table = in.Array("cos_sin_rows", vectors.F32, -1, cache.RopeDim)
	known := in.Optional("cos_sin_pos", vectors.I64, x.table.Dim(0))
	if err := in.Err(); err != nil {
		return x, err
	}
	x.positions, err = tableRows(c, positions, known)
	return x, err
}

func refInverseRope(c Case) (Arrays, error) {
	x, err := readOutput(c, c.Input())
	if err != nil {
		return nil, err
	}
	o := x.o.U16()
	if err := projection.InverseRopeRef(o, x.o.Dim(1), x.positions.I32(), x.table.F32()); err != nil {
		return nil, err
	}
	return Arrays{"o_out": vectors.FromU16(o, x.o.Shape...)}, nil
}

func bindInverseRope(b Build, c Case) (Bound, error) {
	x, err := readOutput(c, c.Input())
	if err != nil {
		return Bound{}, err
	}
	op, err := projection.NewInverseRope(b.Dev, projection.InverseRopeConfig{MaxBytes: b.MaxBytes, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		a := projection.InverseRopeArgs{O: r.In(x.o, tensor.BF16),
			Positions: r.Shared(x.positions, tensor.I32), Table: r.Shared(x.table, tensor.F32)}
		return launch(op, a, outs{"o_out": a.O})
	})
}

func inverseRopeSizes(o SizeOptions) (all []Size) {
	for _, t := range o.steps() {
		for _, heads := range o.pick(o.Heads, []int{64, 128}, []int{64, 128}) {
			bytes := t * (heads*2*2*cache.RopeDim + 4 + 4*cache.RopeDim)
			all = append(all, Size{
				Name: fmt.Sprintf("tokens=%d/heads=%d", t, heads), Work: Work{Bytes: float64(bytes)}, Touched: bytes,
				MaxBytes: uint64(t * heads * 2 * cache.D),
				Make: func(rng *rand.Rand) Case {
					table, positions := manyTurns(rng, t)
					return Case{In: Arrays{"o": manyBF16(rng, 1, t, heads, cache.D), "positions": positions, "cos_sin_rows": table}}
				},
			})
		}
	}
	return all
}
