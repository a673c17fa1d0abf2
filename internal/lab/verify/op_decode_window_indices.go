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

type windowInput struct {
	start, seqLens, req, valid, table Array
	page, window, tokens, rows, r     int
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
	return w, in.Err()
}

func refWindowIndices(c Case) (Arrays, error) {
	w, err := readWindow(c)
	if err != nil {
		return nil, err
	}
	slots := vectors.Filled(windowPoison, vectors.I32, w.tokens, w.window).I32()
	lens := make([]int32, w.rows)
	table := attention.Table{Blocks: w.table.I32(), R: w.r, W: w.table.Dim(1), Page: w.page}
	attention.WindowIndicesRef(w.tokens, w.window, w.start.I32(), w.seqLens.I32(), w.req.I32(), w.valid.Data, table, slots, lens)
	return Arrays{"swa_indices": vectors.FromI32(slots, w.tokens, w.window), "swa_lens": vectors.FromI32(lens, w.rows)}, nil
}

func bindWindowIndices(b Build, c Case) (Bound, error) {
	w, err := readWindow(c)
	if err != nil {
		return Bound{}, err
	}
	op, err := attention.NewWindowIndices(b.Dev, attention.WindowIndicesConfig{Page: w.page, Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		a := attention.WindowIndicesArgs{
			QueryStart: r.In(w.start, tensor.I32), SeqLens: r.In(w.seqLens, tensor.I32), TokenToReq: r.In(w.req, tensor.I32),
			IsValid: r.In(w.valid, tensor.U8), BlockTable: r.In(w.table, tensor.I32),
			Slots: r.Out(tensor.I32, w.tokens, w.window), Lens: r.Out(tensor.I32, w.rows),
		}
		return Launch{Out: map[string]tensor.Tensor{"swa_indices": a.Slots, "swa_lens": a.Lens},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}
