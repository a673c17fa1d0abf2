package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "compute_global_topk_indices_and_lens", Class: ClassExact, Variants: opkit.Builds("attn_window_indices"),
		Of:     Of{"attention.GlobalTopK", "attn_global_topk", ""},
		Random: randomGlobalTopK, Ref: refBy(fields, refGlobalTopK),
		Bind: bindBy(fields, bindGlobalTopK), Compare: exactly("global_indices", "lens"),
	})
}

func randomGlobalTopK(seed uint64) []Case {
	return casesOf(seed, sizes, func(rng *rand.Rand, i int, tokens int) Case {
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
		return Case{
			Name:   fmt.Sprintf("t%d_topk%d_bs%d", tokens, k, page),
			Params: map[string]any{"block_size": page},
			In: Arrays{"topk_indices": vectors.FromI32(topk, tokens, k), "token_to_req": vectors.FromI32(req, tokens),
				"block_table": randomTable(rng, r, w, tokens > 2), "is_valid_token": randomValid(rng, tokens)},
		}
	})
}

type globalTopKInput struct {
	TopK  Array `in:"topk_indices i32 T K"`
	Req   Array `in:"token_to_req+ i32 T"`
	Valid Array `in:"is_valid_token+ u8 T"`
	Table Array `in:"block_table i32 R W"`
	Page  int   `in:"block_size"`

	T, K, R, W int
}

func refGlobalTopK(x globalTopKInput) (Arrays, error) {
	table := attention.Table{Blocks: x.Table.I32(), R: x.R, W: x.W, Page: x.Page}
	slots, lens := attention.GlobalTopKRef(x.TopK.I32(), x.K, x.Req.I32(), table, x.Valid.Data)
	return Arrays{"global_indices": vectors.FromI32(slots, x.T, x.K), "lens": vectors.FromI32(lens, x.T)}, nil
}

func bindGlobalTopK(b Build, x globalTopKInput) (Bound, error) {
	op, err := attention.NewGlobalTopK(b.Dev, attention.GlobalTopKConfig{Page: x.Page})
	return bound(op, err, func(r *Rig) Launch {
		a := attention.GlobalTopKArgs{
			TopK: r.In(x.TopK, tensor.I32), TokenToReq: r.In(x.Req, tensor.I32), BlockTable: r.In(x.Table, tensor.I32),
			IsValid: r.In(x.Valid, tensor.U8), Slots: r.Out(tensor.I32, x.T, x.K), Lens: r.Out(tensor.I32, x.T),
		}
		return launch(op, a, outs{"global_indices": a.Slots, "lens": a.Lens})
	})
}
