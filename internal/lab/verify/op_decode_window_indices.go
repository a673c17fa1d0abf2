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
		Name: "decode_window_indices", Class: ClassExact, Variants: attention.IndexVariants,
		Random: randomWindowIndices, Ref: refWindowIndices, Bind: bindWindowIndices, Compare: exactly("swa_indices", "swa_lens"),
	})
	Register(Op{ // windows that end with a block of drafts, whose tokens all attend it
		Name: "draft_block_indices", Class: ClassExact, Variants: attention.IndexVariants,
		Random: randomDraftIndices, Ref: refWindowIndices, Bind: bindWindowIndices, Compare: exactly("swa_indices", "swa_lens"),
	})
}

// windowPoison is what a row holds before the operation, and still holds after it
// if the token is invalid: the byte that Rig.Out fills index arrays with.
const windowPoison = poisonOther

func randomWindowIndices(seed uint64) []Case {
	var cases []Case
	for i, tokens := range sizes {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		r, page, window := min(tokens, 7), []int{64, 64, 16, 2, 3, 64}[i], []int{128, 128, 17, 61, 2, 1}[i]
		maxLen := 3*window + tokens + 5
		start, seqLens, req := randomRequests(rng, tokens, r, maxLen, 0)
		w := maxLen/page + 1
		if i == 2 {
			w = max(w/2, 1) // too narrow: what it lacks is -1
			req[5], req[6] = -1, int32(r)
		}
		cases = append(cases, Case{
			Name:   fmt.Sprintf("t%d_window%d_bs%d", tokens, window, page),
			Params: map[string]any{"block_size": page, "window_size": window, "rows": tokens + i},
			In: Arrays{"query_start_loc": vectors.FromI32(start, r+1), "seq_lens": vectors.FromI32(seqLens, r),
				"token_to_req": vectors.FromI32(req, tokens), "is_valid_token": randomValid(rng, tokens),
				"block_table": randomTable(rng, r, w, i > 1)},
		})
	}
	return cases
}

// randomDraftIndices makes blocks of up to `drafts` tokens, with contexts shorter than the window
// and longer, and a request without any.
func randomDraftIndices(seed uint64) []Case {
	var cases []Case
	for i, requests := range []int{1, 2, 17, 5, 23} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
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
		tokens, w := len(req), longest/page+1
		if i == 2 {
			w = max(w/2, 1) // too narrow: what it lacks is -1
			req[5], req[6] = -1, int32(requests)
		}
		cases = append(cases, Case{
			Name:   fmt.Sprintf("r%d_window%d_drafts%d_bs%d", requests, window, drafts, page),
			Params: map[string]any{"block_size": page, "window_size": window, "drafts": drafts, "rows": tokens + i},
			In: Arrays{"query_start_loc": vectors.FromI32(start, requests+1), "seq_lens": vectors.FromI32(seqLens, requests),
				"token_to_req": vectors.FromI32(req, tokens), "is_valid_token": randomValid(rng, tokens),
				"block_table": randomTable(rng, requests, w, i > 1)},
		})
	}
	return cases
}

type windowInput struct {
	start, seqLens, req, valid, table Array
	page, window, drafts              int
	tokens, rows, r                   int
}

func readWindow(c Case) (w windowInput, err error) {
	in := c.Input()
	w.seqLens = in.Array("seq_lens", vectors.I32, -1)
	w.r = w.seqLens.Dim(0)
	w.start = in.Array("query_start_loc", vectors.I32, w.r+1)
	w.req = in.Array("token_to_req", vectors.I32, -1)
	w.tokens = w.req.Dim(0)
	w.valid = in.Array("is_valid_token", vectors.U8, w.tokens)
	w.table = in.Array("block_table", vectors.I32, w.r, -1)
	w.page, w.window, w.rows = in.Int("block_size"), in.Int("window_size"), in.IntOr("rows", w.tokens)
	w.drafts = in.IntOr("drafts", 0)
	return w, in.Err()
}

func refWindowIndices(c Case) (Arrays, error) {
	w, err := readWindow(c)
	if err != nil {
		return nil, err
	}
	slots := vectors.Filled(windowPoison, vectors.I32, w.tokens, w.window+w.drafts).I32()
	lens := make([]int32, w.rows)
	table := attention.Table{Blocks: w.table.I32(), R: w.r, W: w.table.Dim(1), Page: w.page}
	start, seqLens, req, valid := w.start.I32(), w.seqLens.I32(), w.req.I32(), w.valid.Data
	if w.drafts > 0 {
		attention.DraftIndicesRef(w.tokens, w.window, w.drafts, start, seqLens, req, valid, table, slots, lens)
	} else {
		attention.WindowIndicesRef(w.tokens, w.window, start, seqLens, req, valid, table, slots, lens)
	}
	return Arrays{"swa_indices": vectors.FromI32(slots, w.tokens, w.window+w.drafts), "swa_lens": vectors.FromI32(lens, w.rows)}, nil
}

func bindWindowIndices(b Build, c Case) (Bound, error) {
	w, err := readWindow(c)
	if err != nil {
		return Bound{}, err
	}
	op, err := attention.NewWindowIndices(b.Dev, attention.WindowIndicesConfig{Page: w.page, Drafts: w.drafts, Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := attention.WindowIndicesArgs{
			QueryStart: r.In(w.start, tensor.I32), SeqLens: r.In(w.seqLens, tensor.I32), TokenToReq: r.In(w.req, tensor.I32),
			IsValid: r.In(w.valid, tensor.U8), BlockTable: r.In(w.table, tensor.I32),
			Slots: r.Out(tensor.I32, w.tokens, w.window+w.drafts), Lens: r.Out(tensor.I32, w.rows),
		}
		return Launch{Out: map[string]tensor.Tensor{"swa_indices": a.Slots, "swa_lens": a.Lens},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}
