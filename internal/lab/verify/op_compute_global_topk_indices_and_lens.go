package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "compute_global_topk_indices_and_lens", Class: ClassExact, Variants: attention.IndexVariants,
		Random: randomGlobalTopK, Ref: refGlobalTopK, Bind: bindGlobalTopK, Compare: exactly("global_indices", "lens"),
	})
}

func randomGlobalTopK(seed uint64) []Case {
	var cases []Case
	for i, tokens := range sizes {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		k, page, r := sizes[len(sizes)-1-i], []int{64, 2, 16, 1, 3, 64}[i], min(tokens, 5)
		w := k/page + 2
		topk := make([]int32, tokens*k)
		for j := range topk {
			switch rng.IntN(12) {
			case 0:
				topk[j] = []int32{-1, -1, math.MinInt32}[rng.IntN(3)]
			case 1:
				topk[j] = []int32{int32(w * page), math.MaxInt32}[rng.IntN(2)] // not in the table
			default:
				topk[j] = int32(rng.IntN(w * page))
			}
		}
		req := make([]int32, tokens)
		for j := range req {
			req[j] = int32(rng.IntN(r))
			if tokens > 17 && rng.IntN(16) == 0 {
				req[j] = []int32{-1, int32(r), math.MaxInt32}[rng.IntN(3)]
			}
		}
		cases = append(cases, Case{
			Name:   fmt.Sprintf("t%d_topk%d_bs%d", tokens, k, page),
			Params: map[string]any{"block_size": page},
			In: Arrays{"topk_indices": vectors.FromI32(topk, tokens, k), "token_to_req": vectors.FromI32(req, tokens),
				"block_table": randomTable(rng, r, w, tokens > 2), "is_valid_token": randomValid(rng, tokens)},
		})
	}
	return cases
}

// tableInput reads block_table as the references take it.
func tableInput(in *vectors.Input, page int) (Array, attention.Table) {
	t := in.Array("block_table", vectors.I32, -1, -1)
	return t, attention.Table{Blocks: t.I32(), R: t.Dim(0), W: t.Dim(1), Page: page}
}

func refGlobalTopK(c Case) (Arrays, error) {
	in := c.Input()
	topk := in.Array("topk_indices", vectors.I32, -1, -1)
	tokens, k := topk.Dim(0), topk.Dim(1)
	req, valid := in.First(tokens, "token_to_req", vectors.I32), in.First(tokens, "is_valid_token", vectors.U8)
	_, table := tableInput(in, in.Int("block_size"))
	if err := in.Err(); err != nil {
		return nil, err
	}
	slots, lens := attention.GlobalTopKRef(topk.I32(), k, req.I32(), table, valid.Data)
	return Arrays{"global_indices": vectors.FromI32(slots, tokens, k), "lens": vectors.FromI32(lens, tokens)}, nil
}

func bindGlobalTopK(b Build, c Case) (Bound, error) {
	in := c.Input()
	topk := in.Array("topk_indices", vectors.I32, -1, -1)
	tokens, k := topk.Dim(0), topk.Dim(1)
	req, valid := in.First(tokens, "token_to_req", vectors.I32), in.First(tokens, "is_valid_token", vectors.U8)
	table, page := in.Array("block_table", vectors.I32, -1, -1), in.Int("block_size")
	if err := in.Err(); err != nil {
		return Bound{}, err
	}
	op, err := attention.NewGlobalTopK(b.Dev, attention.GlobalTopKConfig{Page: page, Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := attention.GlobalTopKArgs{
			TopK: r.In(topk, tensor.I32), TokenToReq: r.In(req, tensor.I32), BlockTable: r.In(table, tensor.I32), IsValid: r.In(valid, tensor.U8),
			Slots: r.Out(tensor.I32, tokens, k), Lens: r.Out(tensor.I32, tokens),
		}
		return Launch{Out: map[string]tensor.Tensor{"global_indices": a.Slots, "lens": a.Lens},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}
