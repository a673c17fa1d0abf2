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
		Name: "visible_entries", Class: ClassExact, Variants: opkit.Builds("idx_visible"),
		Of:     Of{"indexer.Visible", "idx_visible", ""},
		Random: randomVisible, Ref: refBy(fields, refVisible), Bind: bindBy(fields, bindVisible), Compare: exactly("lens"),
	})
}

func randomVisible(seed uint64) []Case {
	return casesOf(seed, sizes, func(rng *rand.Rand, i int, tokens int) Case {
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
		return Case{
			Name:   fmt.Sprintf("t%d_ratio%d_limit%d", tokens, ratio, limit),
			Params: map[string]any{"compress_ratio": ratio, "limit": limit}, In: in,
		}
	})
}

type visibleInput struct {
	Positions Array `in:"positions i32 T"`
	Valid     Array `in:"is_valid_token? u8 *"`
	Ratio     int   `in:"compress_ratio"`
	Limit     int   `in:"limit"`
	T         int
}

func refVisible(v visibleInput) (Arrays, error) {
	lens := make([]int32, v.T)
	indexer.VisibleRef(v.Positions.I32(), v.Valid.Data, v.Ratio, v.Limit, lens)
	return Arrays{"lens": vectors.FromI32(lens, v.T)}, nil
}

func bindVisible(b Build, v visibleInput) (Bound, error) {
	op, err := indexer.NewVisible(b.Dev, indexer.VisibleConfig{Ratio: v.Ratio})
	return bound(op, err, func(r *Rig) Launch {
		a := indexer.VisibleArgs{Positions: r.In(v.Positions, tensor.I32), IsValid: r.In(v.Valid, tensor.U8),
			Lens: r.Out(tensor.I32, v.T), Limit: v.Limit}
		return launch(op, a, outs{"lens": a.Lens})
	})
}
