package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "candidate_entries", Class: ClassExact, Variants: opkit.Builds("idx_candidate_entries"),
		Of:     Of{"indexer.CandidateEntries", "idx_candidate_entries", ""},
		Random: randomEntries, Ref: refBy(fields, refEntries), Bind: bindBy(fields, bindEntries),
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
	return casesOf(seed, sizes, func(rng *rand.Rand, i int, tokens int) Case {
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
		return c
	})
}

type entriesInput struct {
	Picks  Array `in:"topk_indices i32 T K"`
	Blocks Array `in:"blocks i32 T Width"`
	Block  int   `in:"block=8"`
	Page   int   `in:"block_size=0"` // 0: without slots
	Lens   Array `in:"lengths? i32 T"`
	Req    Array `in:"token_to_req? i32 T"`
	Table  Array `in:"block_table? i32 R W"`

	T, K, Width, R, W int
}

func refEntries(x entriesInput) (Arrays, error) {
	entries := indexer.CandidateEntriesRef(x.Picks.I32(), x.K, x.Blocks.I32(), x.Width, x.Block)
	want := Arrays{"topk_indices": vectors.FromI32(entries, x.T, x.K)}
	if x.Page == 0 {
		return want, nil
	}
	slots, lens := make([]int32, len(entries)), x.Lens.I32()
	table, req := attention.Table{Blocks: x.Table.I32(), R: x.R, W: x.W, Page: x.Page}, x.Req.I32()
	for i, e := range entries {
		slots[i] = -1
		if r := req[i/x.K]; e >= 0 && r >= 0 && int(r) < table.R {
			slots[i] = table.Slot(r, int(e))
		}
	}
	for t, l := range lens {
		lens[t] = min(max(l, 0), int32(x.K), int32(x.Width*x.Block))
	}
	want["global_indices"], want["lens"] = vectors.FromI32(slots, x.T, x.K), vectors.FromI32(lens, x.T)
	return want, nil
}

func bindEntries(b Build, x entriesInput) (Bound, error) {
	op, err := indexer.NewCandidateEntries(b.Dev, indexer.CandidateEntriesConfig{Block: x.Block, SlotPage: x.Page})
	return bound(op, err, func(r *Rig) Launch {
		a := indexer.CandidateEntriesArgs{Picks: r.In(x.Picks, tensor.I32), Blocks: r.In(x.Blocks, tensor.I32),
			TokenToReq: r.In(x.Req, tensor.I32), Lens: r.In(x.Lens, tensor.I32)}
		out := outs{"topk_indices": a.Picks}
		if x.Page > 0 {
			a.Slots = indexer.PickSlots{BlockTable: r.In(x.Table, tensor.I32),
				Slots: r.Out(tensor.I32, x.T, x.K), Lens: r.Out(tensor.I32, x.T)}
			out["global_indices"], out["lens"] = a.Slots.Slots, a.Slots.Lens
		}
		return launch(op, a, out)
	})
}
