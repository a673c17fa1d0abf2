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
		Name: "combine_topk_swa_indices", Class: ClassExact, Variants: attention.IndexVariants,
		Random: randomCombine, Ref: refCombine, Bind: bindCombine, Compare: exactly("combined_indices", "combined_lens"),
	})
}

func randomCombine(seed uint64) []Case {
	var cases []Case
	for i, tokens := range sizes {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
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
		cases = append(cases, c)
	}
	return cases
}

type combineInput struct {
	topk, start, seqLens, gather   Array
	tokens, k, window, ratio, m, n int
}

// readCombine reads a case. A recorded one may have more rows of picks than tokens.
func readCombine(c Case) (x combineInput, err error) {
	in := c.Input()
	x.topk = in.Array("topk_indices", vectors.I32, -1, -1)
	if lens, ok := c.Want["combined_lens"]; ok {
		x.topk = x.topk.First(lens.Dim(0))
	}
	x.tokens = x.topk.Dim(0)
	x.seqLens = in.Array("seq_lens", vectors.I32, -1)
	x.start, x.gather = in.Array("query_start_loc", vectors.I32, x.seqLens.Dim(0)+1), in.Array("gather_lens", vectors.I32, x.seqLens.Dim(0))
	x.k, x.window, x.ratio, x.m, x.n = in.Int("topk"), in.Int("window_size"), in.Int("compress_ratio"), in.Int("M"), in.Int("N")
	return x, in.Err()
}

func refCombine(c Case) (Arrays, error) {
	x, err := readCombine(c)
	if err != nil {
		return nil, err
	}
	indices, lens := attention.CombineIndicesRef(x.tokens, x.topk.I32(), x.topk.Dim(1), x.start.I32(), x.seqLens.I32(), x.gather.I32(),
		x.k, x.window, x.ratio, x.m, x.n)
	return Arrays{"combined_indices": vectors.FromI32(indices, x.tokens, attention.CombinedWidth(x.k, x.window)),
		"combined_lens": vectors.FromI32(lens, x.tokens)}, nil
}

func bindCombine(b Build, c Case) (Bound, error) {
	x, err := readCombine(c)
	if err != nil {
		return Bound{}, err
	}
	op, err := attention.NewCombineIndices(b.Dev, attention.CombineIndicesConfig{Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := attention.CombineIndicesArgs{
			TopK: r.In(x.topk, tensor.I32), QueryStart: r.In(x.start, tensor.I32), SeqLens: r.In(x.seqLens, tensor.I32), GatherLens: r.In(x.gather, tensor.I32),
			Indices: r.Out(tensor.I32, x.tokens, attention.CombinedWidth(x.k, x.window)), Lens: r.Out(tensor.I32, x.tokens),
			K: x.k, Window: x.window, Ratio: x.ratio, M: x.m, N: x.n,
		}
		return Launch{Out: map[string]tensor.Tensor{"combined_indices": a.Indices, "combined_lens": a.Lens},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}
