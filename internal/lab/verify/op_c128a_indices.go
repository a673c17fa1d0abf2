package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "c128a_indices", Class: ClassExact, Variants: opkit.Builds("attn_window_indices"),
		Of:     Of{"attention.C128Indices", "attn_c128_indices", ""},
		Random: randomC128, Ref: refBy(fields, refC128), Bind: bindBy(fields, bindC128), Compare: exactly("indices", "lens"),
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

type c128Input struct {
	Positions Array `in:"positions i32 T"`
	Slots     Array `in:"slot_mapping? i64 T"`
	Req       Array `in:"token_to_req? i32 T"`
	Table     Array `in:"block_table? i32 R W"`
	Width     int   `in:"width"`
	Page      int   `in:"block_size"`
	Ratio     int   `in:"compress_ratio"`

	T, R, W int
}

func refC128(x c128Input) (Arrays, error) {
	var table *attention.Table
	if !x.Table.IsZero() {
		table = &attention.Table{Blocks: x.Table.I32(), R: x.R, W: x.W, Page: x.Page}
	}
	indices, lens := attention.C128IndicesRef(x.Positions.I32(), x.Ratio, x.Width, x.Slots.I64(), x.Req.I32(), table)
	return Arrays{"indices": vectors.FromI32(indices, x.T, x.Width), "lens": vectors.FromI32(lens, x.T)}, nil
}

func bindC128(b Build, x c128Input) (Bound, error) {
	op, err := attention.NewC128Indices(b.Dev, attention.C128IndicesConfig{Page: x.Page, Ratio: x.Ratio})
	return bound(op, err, func(r *Rig) Launch {
		a := attention.C128IndicesArgs{
			Positions: r.In(x.Positions, tensor.I32), SlotMapping: r.In(x.Slots, tensor.I64),
			TokenToReq: r.In(x.Req, tensor.I32), BlockTable: r.In(x.Table, tensor.I32),
			Indices: r.Out(tensor.I32, x.T, x.Width), Lens: r.Out(tensor.I32, x.T),
		}
		return launch(op, a, outs{"indices": a.Indices, "lens": a.Lens})
	})
}
