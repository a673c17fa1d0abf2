package verify

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "inverse_rope", Class: ClassExact, Variants: projection.InverseRopeVariants,
		Random: randomInverseRope, Ref: refInverseRope, Run: runInverseRope, Compare: exactly("o_out"),
	})
}

func randomInverseRope(seed uint64) []Case {
	var cases []Case
	add := func(tokens, heads int) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		table, positions := randomTurns(rng, tokens)
		cases = append(cases, Case{
			Name: fmt.Sprintf("t%d_h%d", tokens, heads),
			In:   Arrays{"o": reshaped(randomRows(rng, tokens*heads), tokens, heads, projection.D), "positions": positions, "cos_sin_rows": table},
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
	x.o = in.Array("o", vectors.U16, -1, -1, projection.D)
	positions := in.Array("positions", vectors.I64, x.o.Dim(0))
	x.table = in.Array("cos_sin_rows", vectors.F32, -1, projection.RopeDim)
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

func runInverseRope(ctx context.Context, dev *vk.Device, variant string, c Case) (Arrays, error) {
	x, err := readOutput(c, c.Input())
	if err != nil {
		return nil, err
	}
	op, err := projection.NewInverseRope(dev, projection.InverseRopeConfig{Variant: variant})
	if err != nil {
		return nil, err
	}
	r := NewRig(ctx, dev)
	defer r.Close()
	a := projection.InverseRopeArgs{O: r.In(x.o, tensor.BF16), Positions: r.In(x.positions, tensor.I32), Table: r.In(x.table, tensor.F32)}
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return r.Results(map[string]tensor.Tensor{"o_out": a.O})
}
