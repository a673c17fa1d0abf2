package verify

import (
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
		Name: "visible_entries", Class: ClassExact, Variants: indexer.VisibleVariants,
		Random: randomVisible, Ref: refVisible, Bind: bindVisible, Compare: exactly("lens"),
	})
}

func randomVisible(seed uint64) []Case {
	var cases []Case
	for i, tokens := range sizes {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		ratio, limit := []int{4, 128, 1, 2, 3, 4}[i], []int{0, 0, 1, 1 << 17, 17, 61}[i]
		positions, valid := make([]int32, tokens), make([]byte, tokens+i%3)
		for t := range positions {
			entry := int32(rng.IntN(1<<20) / ratio * ratio)
			positions[t] = []int32{entry, entry + int32(ratio) - 1, int32(t), -1 - rng.Int32N(9), math.MaxInt32, math.MinInt32}[(t+i)%6]
			valid[t] = []byte{0, 1, 0xFF, 1}[rng.IntN(4)]
		}
		in := Arrays{"positions": vectors.FromI32(positions, tokens)}
		if i%2 == 1 {
			in["is_valid_token"] = Array{Type: vectors.U8, Shape: []int{len(valid)}, Data: valid}
		}
		cases = append(cases, Case{
			Name:   fmt.Sprintf("t%d_ratio%d_limit%d", tokens, ratio, limit),
			Params: map[string]any{"compress_ratio": ratio, "limit": limit}, In: in,
		})
	}
	return cases
}

type visibleInput struct {
	positions, valid     Array
	ratio, limit, tokens int
}

func readVisible(c Case) (v visibleInput, err error) {
	in := c.Input()
	v.positions = in.Array("positions", vectors.I32, -1)
	v.tokens = v.positions.Dim(0)
	v.valid = in.Optional("is_valid_token", vectors.U8, -1)
	v.ratio, v.limit = in.Int("compress_ratio"), in.Int("limit")
	return v, in.Err()
}

func refVisible(c Case) (Arrays, error) {
	v, err := readVisible(c)
	if err != nil {
		return nil, err
	}
	lens := make([]int32, v.tokens)
	indexer.VisibleRef(v.positions.I32(), v.valid.Data, v.ratio, v.limit, lens)
	return Arrays{"lens": vectors.FromI32(lens, v.tokens)}, nil
}

func bindVisible(b Build, c Case) (Bound, error) {
	v, err := readVisible(c)
	if err != nil {
		return Bound{}, err
	}
	op, err := indexer.NewVisible(b.Dev, indexer.VisibleConfig{Ratio: v.ratio, Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := indexer.VisibleArgs{Positions: r.In(v.positions, tensor.I32), IsValid: r.In(v.valid, tensor.U8),
			Lens: r.Out(tensor.I32, v.tokens), Limit: v.limit}
		return Launch{Out: map[string]tensor.Tensor{"lens": a.Lens}, Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}
