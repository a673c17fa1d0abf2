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
	for name, random := range map[string]func(seed uint64) []Case{
		"decode_window_indices": randomWindowIndices,
		"draft_block_indices":   randomDraftIndices, // windows that end with a block of drafts, whose tokens all attend it
	} {
		Register(Op{
			Name: name, Class: ClassExact, Variants: opkit.Builds("attn_window_indices"),
			Of:     Of{"attention.WindowIndices", "attn_window_indices", ""},
			Random: random, Ref: refBy(readWindow, refWindowIndices),
			Bind: bindBy(readWindow, bindWindowIndices), Compare: exactly("swa_indices", "swa_lens"),
		})
	}
}

// windowPoison fills a row before the operation, and still after it if the token is invalid: the
// byte that Rig.Out fills index arrays with.
const windowPoison = poisonOther

func randomWindowIndices(seed uint64) []Case {
	return casesOf(seed, sizes, func(rng *rand.Rand, i int, tokens int) Case {
		r, page, window := min(tokens, 7), []int{64, 64, 16, 2, 3, 64}[i], []int{128, 128, 17, 61, 2, 1}[i]
		maxLen := 3*window + tokens + 5
		start, seqLens, req := randomRequests(rng, tokens, r, maxLen, 0)
		c := windowCase(rng, i, page, window, maxLen, start, seqLens, req)
		c.Name = fmt.Sprintf("t%d_window%d_bs%d", tokens, window, page)
		return c
	})
}

// windowCase makes case i of requests of up to longest tokens. In case 2 the table is too narrow:
// what it lacks is -1.
func windowCase(rng *rand.Rand, i, page, window, longest int, start, seqLens, req []int32) Case {
	tokens, r, w := len(req), len(seqLens), longest/page+1
	if i == 2 {
		w = max(w/2, 1)
		req[5], req[6] = -1, int32(r)
	}
	return Case{
		Params: map[string]any{"block_size": page, "window_size": window, "rows": tokens + i},
		In: Arrays{"query_start_loc": vectors.FromI32(start, r+1), "seq_lens": vectors.FromI32(seqLens, r),
			"token_to_req": vectors.FromI32(req, tokens), "is_valid_token": randomValid(rng, tokens),
			"block_table": randomTable(rng, r, w, i > 1)},
	}
}

// randomDraftIndices makes blocks of up to `drafts` tokens, with contexts shorter than the window
// and longer, and a request without any.
func randomDraftIndices(seed uint64) []Case {
	return casesOf(seed, []int{1, 2, 17, 5, 23}, func(rng *rand.Rand, i int, requests int) Case {
		page, window, drafts := []int{64, 64, 16, 3, 32}[i], []int{128, 128, 17, 61, 1}[i], []int{5, 5, 3, 6, 1}[i]
		start, seqLens, req := make([]int32, requests+1), make([]int32, requests), []int32(nil)
		longest := 0
		for r := range requests {
			n := 1 + rng.IntN(drafts)
			if i == 2 && r == 3 {
				n = drafts + 2 // more than there is room for
			}
			context := []int{0, rng.IntN(window), window, window + rng.IntN(2*window+page)}[(r+i+rng.IntN(2))%4]
			start[r+1], seqLens[r] = start[r]+int32(n), int32(context+n)
			longest = max(longest, context+n)
			for range n {
				req = append(req, int32(r))
			}
		}
		c := windowCase(rng, i, page, window, longest, start, seqLens, req)
		c.Name, c.Params["drafts"] = fmt.Sprintf("r%d_window%d_drafts%d_bs%d", requests, window, drafts, page), drafts
		return c
	})
}

type windowInput struct {
	SeqLens Array `in:"seq_lens i32 R"`
	Start   Array `in:"query_start_loc i32 R+1"`
	Req     Array `in:"token_to_req i32 T"`
	Valid   Array `in:"is_valid_token u8 T"`
	Table   Array `in:"block_table i32 R W"`
	Page    int   `in:"block_size"`
	Window  int   `in:"window_size"`
	Drafts  int   `in:"drafts=0"`
	Rows    int   `in:"rows=-1"` // of lengths; below 0: as many as tokens

	R, T, W int
}

func readWindow(c Case) (w windowInput, err error) {
	if w, err = fields[windowInput](c); w.Rows < 0 {
		w.Rows = w.T
	}
	return w, err
}

func refWindowIndices(w windowInput) (Arrays, error) {
	slots := vectors.Filled(windowPoison, vectors.I32, w.T, w.Window+w.Drafts).I32()
	lens := make([]int32, w.Rows)
	table := attention.Table{Blocks: w.Table.I32(), R: w.R, W: w.W, Page: w.Page}
	start, seqLens, req, valid := w.Start.I32(), w.SeqLens.I32(), w.Req.I32(), w.Valid.Data
	if w.Drafts > 0 {
		attention.DraftIndicesRef(w.T, w.Window, w.Drafts, start, seqLens, req, valid, table, slots, lens)
	} else {
		attention.WindowIndicesRef(w.T, w.Window, start, seqLens, req, valid, table, slots, lens)
	}
	return Arrays{"swa_indices": vectors.FromI32(slots, w.T, w.Window+w.Drafts), "swa_lens": vectors.FromI32(lens, w.Rows)}, nil
}

func bindWindowIndices(b Build, w windowInput) (Bound, error) {
	op, err := attention.NewWindowIndices(b.Dev, attention.WindowIndicesConfig{Page: w.Page, Drafts: w.Drafts})
	return bound(op, err, func(r *Rig) Launch {
		a := attention.WindowIndicesArgs{
			QueryStart: r.In(w.Start, tensor.I32), SeqLens: r.In(w.SeqLens, tensor.I32), TokenToReq: r.In(w.Req, tensor.I32),
			IsValid: r.In(w.Valid, tensor.U8), BlockTable: r.In(w.Table, tensor.I32),
			Slots: r.Out(tensor.I32, w.T, w.Window+w.Drafts), Lens: r.Out(tensor.I32, w.Rows),
		}
		return launch(op, a, outs{"swa_indices": a.Slots, "swa_lens": a.Lens})
	})
}
