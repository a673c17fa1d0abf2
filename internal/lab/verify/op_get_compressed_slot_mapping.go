package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(Op{
		Name: "get_compressed_slot_mapping", Class: ClassExact, Variants: cache.SlotMappingVariants,
		Random: randomSlotMapping, Ref: refSlotMapping, Bind: bindSlotMapping, Compare: exactly("slot_mapping"),
	})
}

func randomSlotMapping(seed uint64) []Case {
	var cases []Case
	// add makes a case: new tokens of each request, padding tokens, and how many
	// requests have a hole in the table where their tokens go.
	add := func(page, ratio, longest, padding, holes int, queries ...int32) {
		rng := rand.New(rand.NewPCG(seed, uint64(len(cases))))
		start, seq := []int32{0}, []int32{}
		width := 1
		for _, q := range queries {
			n := q + int32(rng.IntN(longest))
			start, seq = append(start, start[len(start)-1]+q), append(seq, n)
			width = max(width, (int(n)/ratio+page-1)/page)
		}
		table := permutation(rng, len(queries)*width, len(queries)*width+100)
		for i := range holes {
			r := i % len(queries)
			if last := (int(seq[r])/ratio - 1) / page; last >= 0 {
				table[r*width+last] = -1
			}
		}
		if holes > 0 {
			table[rng.IntN(len(table))] = 1<<31 - 1 // ids whose slots need 64 bits
		}
		tokens := int(start[len(start)-1]) + padding
		cases = append(cases, Case{
			Name:   fmt.Sprintf("r%d_t%d_page%d_ratio%d", len(queries), tokens, page, ratio),
			About:  fmt.Sprintf("%d padding tokens, %d holes", padding, holes),
			Params: map[string]any{"block_size": page, "compress_ratio": ratio, "num_tokens": tokens},
			In: Arrays{
				"query_start_loc": vectors.FromI32(start, len(start)), "seq_lens": vectors.FromI32(seq, len(seq)),
				"block_table": vectors.FromI32(table, len(queries), width),
			},
		})
	}
	add(64, 1, 1, 0, 0, 1)
	add(64, 1, 300, 3, 0, 1, 1, 17, 2)
	add(64, 4, 2000, 0, 0, 1, 17, 3, 0, 61)
	add(2, 128, 3000, 5, 0, 2, 321, 0, 0, 69)
	add(16, 4, 500, 61, 2, 61, 1, 1)
	add(1, 4, 40, 1, 1, 2, 2)
	add(3, 128, 1000, 0, 1, 321, 130, 0)
	add(64, 4, 1<<20, 17, 3, 1, 1, 2, 17, 1)
	return cases
}

type slotMappingInput struct {
	start, seq, table   Array
	page, ratio, tokens int
}

// readSlotMapping reads a case. The mapping's length is the parameter num_tokens,
// or that of the recorded result, or the number of real tokens.
func readSlotMapping(c Case) (s slotMappingInput, err error) {
	in := c.Input()
	s.seq = in.Array("seq_lens", vectors.I32, -1)
	s.start = in.Array("query_start_loc", vectors.I32, s.seq.Dim(0)+1)
	s.table = in.First(s.seq.Dim(0), "block_table", vectors.I32, -1)
	s.page, s.ratio = in.Int("block_size"), in.Int("compress_ratio")
	if want, ok := c.Want["slot_mapping"]; ok {
		s.tokens = want.Len()
	} else if starts := s.start.I32(); len(starts) > 0 {
		s.tokens = in.IntOr("num_tokens", int(starts[len(starts)-1]))
	}
	if s.tokens < 0 {
		return s, fmt.Errorf("verify: slot mapping: %d tokens: %w", s.tokens, vectors.ErrFormat)
	}
	return s, in.Err()
}

func refSlotMapping(c Case) (Arrays, error) {
	s, err := readSlotMapping(c)
	if err != nil {
		return nil, err
	}
	slots := make([]int64, s.tokens)
	if err := cache.SlotMappingRef(slots, s.start.I32(), s.seq.I32(), s.table.I32(), s.table.Dim(1), s.page, s.ratio); err != nil {
		return nil, err
	}
	return Arrays{"slot_mapping": vectors.FromI64(slots, s.tokens)}, nil
}

func bindSlotMapping(b Build, c Case) (Bound, error) {
	s, err := readSlotMapping(c)
	if err != nil {
		return Bound{}, err
	}
	op, err := cache.NewSlotMapping(b.Dev, cache.SlotMappingConfig{Page: s.page, Ratio: s.ratio, Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		args := cache.SlotMappingArgs{
			QueryStart: r.In(s.start, tensor.I32), SeqLens: r.In(s.seq, tensor.I32), Table: r.In(s.table, tensor.I32),
			Slots: r.Out(tensor.I64, s.tokens),
		}
		return Launch{Out: map[string]tensor.Tensor{"slot_mapping": args.Slots},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, args) }}
	}}, nil
}
