package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "c128a_indices", Class: ClassExact, Variants: attention.IndexVariants,
		Random: randomC128, Ref: refC128, Bind: bindC128, Compare: exactly("indices", "lens"),
	})
}

// randomC128 makes both forms: without a block table rows are local.
func randomC128(seed uint64) []Case {
	var cases []Case
	for i, tokens := range sizes {
		for _, local := range []bool{false, true} {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			page, r, width := []int{2, 2, 1, 16, 2, 3}[i], min(tokens, 4), []int{128, 256, 128, 61, 1, 128}[i]
			positions, slots, req := make([]int32, tokens), make([]int64, tokens), make([]int32, tokens)
			for j := range positions {
				positions[j] = int32(rng.IntN(128 * (width + 3)))
				if e := []int32{0, 126, 127, 128, 255, 256, 1<<20 - 1, 1<<31 - 1, -1}; rng.IntN(4) == 0 {
					positions[j] = e[rng.IntN(len(e))]
				}
				slots[j], req[j] = int64(rng.IntN(1000)), int32(rng.IntN(r))
				if rng.IntN(5) == 0 {
					slots[j] = -1
				}
			}
			c := Case{
				Name:   fmt.Sprintf("t%d_width%d_bs%d", tokens, width, page),
				Params: map[string]any{"block_size": page, "compress_ratio": 128, "width": width},
				In:     Arrays{"positions": vectors.FromI32(positions, tokens)},
			}
			if !local || i%2 == 0 {
				c.In["slot_mapping"] = vectors.FromI64(slots, tokens)
			}
			if local {
				c.Name += "_local"
			} else {
				c.In["token_to_req"] = vectors.FromI32(req, tokens)
				c.In["block_table"] = randomTable(rng, r, width/page+i%2, i > 1)
			}
			cases = append(cases, c)
		}
	}
	return cases
}

func refC128(c Case) (Arrays, error) {
	in := c.Input()
	positions := in.Array("positions", vectors.I32, -1)
	tokens, width, page, ratio := positions.Dim(0), in.Int("width"), in.Int("block_size"), in.Int("compress_ratio")
	slots, req := in.Optional("slot_mapping", vectors.I64, tokens), in.Optional("token_to_req", vectors.I32, tokens)
	var table *attention.Table
	if in.Has("block_table") {
		_, t := tableInput(in, page)
		table = &t
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	indices, lens := attention.C128IndicesRef(positions.I32(), ratio, width, slots.I64(), req.I32(), table)
	return Arrays{"indices": vectors.FromI32(indices, tokens, width), "lens": vectors.FromI32(lens, tokens)}, nil
}

func bindC128(b Build, c Case) (Bound, error) {
	in := c.Input()
	positions := in.Array("positions", vectors.I32, -1)
	tokens, width := positions.Dim(0), in.Int("width")
	slots, req := in.Optional("slot_mapping", vectors.I64, tokens), in.Optional("token_to_req", vectors.I32, tokens)
	table := in.Optional("block_table", vectors.I32, -1, -1)
	op, err := attention.NewC128Indices(b.Dev, attention.C128IndicesConfig{Page: in.Int("block_size"), Ratio: in.Int("compress_ratio"),
		Variant: b.Variant})
	if in.Err() != nil {
		return Bound{}, in.Err()
	}
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := attention.C128IndicesArgs{
			Positions: r.In(positions, tensor.I32), SlotMapping: r.In(slots, tensor.I64),
			TokenToReq: r.In(req, tensor.I32), BlockTable: r.In(table, tensor.I32),
			Indices: r.Out(tensor.I32, tokens, width), Lens: r.Out(tensor.I32, tokens),
		}
		return Launch{Out: map[string]tensor.Tensor{"indices": a.Indices, "lens": a.Lens},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}
