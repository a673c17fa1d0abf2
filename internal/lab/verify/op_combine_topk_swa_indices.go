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
		Name: "combine_topk_swa_indices", Class: ClassExact, Variants: opkit.Builds("attn_window_indices"),
		Of:     Of{"attention.CombineIndices", "attn_combine_indices", ""},
		Random: randomCombine, Ref: refBy(readCombine, refCombine),
		Bind: bindBy(readCombine, bindCombine), Compare: exactly("combined_indices", "combined_lens"),
	})
}

func randomCombine(seed uint64) []Case {
	return casesOf(seed, sizes, func(rng *rand.Rand, i int, tokens int) Case {
		r, window, ratio := min(tokens, 4), []int{128, 3, 128, 17, 61, 128}[i], []int{4, 2, 128, 4, 1, 4}[i]
		k, columns := []int{321, 4, 0, 69, 2, 17}[i], []int{321, 7, 0, 69, 61, 17}[i]
		start, seqLens, _ := randomRequests(rng, tokens, r, 5*window+tokens, i)
		gather, n := make([]int32, r), 0
		for b := range gather {
			query := int(start[b+1] - start[b])
			gather[b] = int32(query + min(int(seqLens[b])-query, window-1))
			n = max(n, int(seqLens[b])/ratio)
		}
		if k == 0 {
			n = 0
		}
		topk := make([]int32, tokens*columns)
		for j := range topk {
			topk[j] = int32(rng.IntN(n+2)) - 1
		}
		c := Case{
			Name:   fmt.Sprintf("t%d_window%d_ratio%d_topk%d", tokens, window, ratio, k),
			Params: map[string]any{"window_size": window, "compress_ratio": ratio, "topk": k, "N": n, "M": n + 128 + window + tokens},
			In: Arrays{"query_start_loc": vectors.FromI32(start, r+1), "seq_lens": vectors.FromI32(seqLens, r),
				"gather_lens": vectors.FromI32(gather, r)},
		}
		c.In["topk_indices"] = vectors.FromI32(topk, tokens, columns)
		return c
	})
}

type combineInput struct {
	TopK    Array `in:"topk_indices i32 * Columns"`
	SeqLens Array `in:"seq_lens i32 R"`
	Start   Array `in:"query_start_loc i32 R+1"`
	Gather  Array `in:"gather_lens i32 R"`
	K       int   `in:"topk"`
	Window  int   `in:"window_size"`
	Ratio   int   `in:"compress_ratio"`
	M       int   `in:"M"`
	N       int   `in:"N"`

	Columns, R, tokens int
}

// readCombine reads a case. A recorded one may have more rows of picks than tokens.
func readCombine(c Case) (x combineInput, err error) {
	x, err = fields[combineInput](c)
	if lens, ok := c.Want["combined_lens"]; ok {
		x.TopK = x.TopK.First(lens.Dim(0))
	}
	x.tokens = x.TopK.Dim(0)
	return x, err
}

func refCombine(x combineInput) (Arrays, error) {
	indices, lens := attention.CombineIndicesRef(x.tokens, x.TopK.I32(), x.Columns, x.Start.I32(), x.SeqLens.I32(), x.Gather.I32(),
		x.K, x.Window, x.Ratio, x.M, x.N)
	return Arrays{"combined_indices": vectors.FromI32(indices, x.tokens, attention.CombinedWidth(x.K, x.Window)),
		"combined_lens": vectors.FromI32(lens, x.tokens)}, nil
}

func bindCombine(b Build, x combineInput) (Bound, error) {
	op, err := attention.NewCombineIndices(b.Dev)
	return bound(op, err, func(r *Rig) Launch {
		a := attention.CombineIndicesArgs{
			TopK: r.In(x.TopK, tensor.I32), QueryStart: r.In(x.Start, tensor.I32), SeqLens: r.In(x.SeqLens, tensor.I32),
			GatherLens: r.In(x.Gather, tensor.I32),
			Indices:    r.Out(tensor.I32, x.tokens, attention.CombinedWidth(x.K, x.Window)), Lens: r.Out(tensor.I32, x.tokens),
			K: x.K, Window: x.Window, Ratio: x.Ratio, M: x.M, N: x.N,
		}
		return launch(op, a, outs{"combined_indices": a.Indices, "combined_lens": a.Lens})
	})
}
