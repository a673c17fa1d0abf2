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
		NaN:    Spoilt{Input: "o"},
		Random: randomInverseRope, Ref: refBy(fields, refInverseRope), Bind: bindBy(fields, bindInverseRope), Compare: exactly("o_out"),
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

// outputInput is the attention's output and the angles to turn it back by.
type outputInput struct {
	O         Array `in:"o u16 T H 512"`
	Table     Array `in:"cos_sin_rows f32 * 64"`
	Positions Array `in:"positions rows T"`

	T, H int
}

func refInverseRope(x outputInput) (Arrays, error) {
	o := x.O.U16()
	err := projection.InverseRopeRef(o, x.H, x.Positions.I32(), x.Table.F32())
	return Arrays{"o_out": vectors.FromU16(o, x.O.Shape...)}, err
}

func bindInverseRope(b Build, x outputInput) (Bound, error) {
	op, err := projection.NewInverseRope(b.Dev, projection.InverseRopeConfig{MaxBytes: b.MaxBytes, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		a := projection.InverseRopeArgs{O: r.In(x.O, tensor.BF16),
			Positions: r.Shared(x.Positions, tensor.I32), Table: r.Shared(x.Table, tensor.F32)}
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
					return Case{In: Arrays{"o": normalBF16(rng, 1, t, heads, cache.D), "positions": positions, "cos_sin_rows": table}}
				},
			})
		}
	}
	return all
}
