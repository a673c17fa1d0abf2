package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "candidate_entries", Class: ClassExact, Variants: indexer.CandidateEntriesVariants,
		Random: randomEntries, Ref: refBy(readEntries, refEntries), Bind: bindBy(readEntries, bindEntries),
		Compare: func(c Case, got, want Arrays) Result {
			names := []string{"topk_indices"}
			if c.Input().IntOr("block_size", 0) > 0 {
				names = append(names, "global_indices", "lens")
			}
			return exactly(names...)(c, got, want)
		},
	})
}

// randomEntries makes ascending picks, and some of no block, with and without slots.
func randomEntries(seed uint64) []Case {
	var cases []Case
	for i, tokens := range sizes {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		k, width, page, r := sizes[len(sizes)-1-i], []int{1, 3, 17, 6, 61, 2048}[i], []int{0, 2, 16, 0, 3, 64}[i], min(tokens, 5)
		block := []int{8, 1, 2, 64, 32, 8}[i]
		picks, blocks := make([]int32, tokens*k), make([]int32, tokens*width)
		lens, req := make([]int32, tokens), make([]int32, tokens)
		for t := range tokens {
			for b := range width {
				blocks[t*width+b] = int32(2*b + rng.IntN(2))
			}
			lens[t] = int32(rng.IntN(block*width + 1))
			req[t] = int32(rng.IntN(r))
			for j := range k {
				picks[t*k+j] = -1
				if j < int(lens[t]) {
					picks[t*k+j] = int32(rng.IntN(block * width))
				}
			}
			switch i + rng.IntN(4) {
			case 7:
				picks[t*k+rng.IntN(k)] = []int32{int32(block * width), math.MaxInt32, math.MinInt32}[rng.IntN(3)]
			case 6:
				blocks[t*width+rng.IntN(width)] = []int32{-1, math.MaxInt32, 1<<28 - 1, 1 << 28}[rng.IntN(4)]
			case 5:
				lens[t] = []int32{-1, math.MinInt32, math.MaxInt32}[rng.IntN(3)]
				req[t] = []int32{-1, int32(r), math.MaxInt32}[rng.IntN(3)]
			}
		}
		c := Case{Name: fmt.Sprintf("t%d_topk%d_blocks%d_of%d_bs%d", tokens, k, width, block, page),
			Params: map[string]any{"block_size": page, "block": block},
			In:     Arrays{"topk_indices": vectors.FromI32(picks, tokens, k), "blocks": vectors.FromI32(blocks, tokens, width)}}
		if page > 0 {
			c.In["lengths"], c.In["token_to_req"] = vectors.FromI32(lens, tokens), vectors.FromI32(req, tokens)
			c.In["block_table"] = randomTable(rng, r, 2*block*width/page+1, tokens > 2)
		}
		cases = append(cases, c)
	}
	return cases
}

type entriesInput struct {
	picks, blocks, lens, req, table Array
	tokens, k, page, block          int
}

func readEntries(c Case) (x entriesInput, err error) {
	in := c.Input()
	x.picks = in.Array("topk_indices", vectors.I32, -1, -1)
	x.tokens, x.k = x.picks.Dim(0), x.picks.Dim(1)
	x.blocks = in.Array("blocks", vectors.I32, x.tokens, -1)
	x.block = in.IntOr("block", candidateBlock)
	if x.page = in.IntOr("block_size", 0); x.page > 0 {
		x.lens, x.req = in.Array("lengths", vectors.I32, x.tokens), in.Array("token_to_req", vectors.I32, x.tokens)
		x.table = in.Array("block_table", vectors.I32, -1, -1)
	}
	return x, in.Err()
}

func refEntries(x entriesInput) (Arrays, error) {
	entries := indexer.CandidateEntriesRef(x.picks.I32(), x.k, x.blocks.I32(), x.blocks.Dim(1), x.block)
	want := Arrays{"topk_indices": vectors.FromI32(entries, x.tokens, x.k)}
	if x.page == 0 {
		return want, nil
	}
	slots, lens := make([]int32, len(entries)), x.lens.I32()
	table, req := attention.Table{Blocks: x.table.I32(), R: x.table.Dim(0), W: x.table.Dim(1), Page: x.page}, x.req.I32()
	for i, e := range entries {
		slots[i] = -1
		if r := req[i/x.k]; e >= 0 && r >= 0 && int(r) < table.R {
			slots[i] = table.Slot(r, int(e))
		}
	}
	for t, l := range lens {
		lens[t] = min(max(l, 0), int32(x.k), int32(x.blocks.Dim(1)*x.block))
	}
	want["global_indices"], want["lens"] = vectors.FromI32(slots, x.tokens, x.k), vectors.FromI32(lens, x.tokens)
	return want, nil
}

func bindEntries(b Build, x entriesInput) (Bound, error) {
	op, err := indexer.NewCandidateEntries(b.Dev, indexer.CandidateEntriesConfig{Block: x.block, SlotPage: x.page, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		a := indexer.CandidateEntriesArgs{Picks: r.In(x.picks, tensor.I32), Blocks: r.In(x.blocks, tensor.I32)}
		out := map[string]tensor.Tensor{"topk_indices": a.Picks}
		if x.page > 0 {
			a.TokenToReq, a.Lens = r.In(x.req, tensor.I32), r.In(x.lens, tensor.I32)
			a.Slots = indexer.PickSlots{BlockTable: r.In(x.table, tensor.I32),
				Slots: r.Out(tensor.I32, x.tokens, x.k), Lens: r.Out(tensor.I32, x.tokens)}
			out["global_indices"], out["lens"] = a.Slots.Slots, a.Slots.Lens
		}
		return launch(op, a, out)
	})
}
