package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "get_compressed_slot_mapping", Class: ClassExact, Variants: opkit.Builds("kv_slot_mapping"),
		Of:     Of{"cache.SlotMapping", "kv_slot_mapping", ""},
		Random: randomSlotMapping, Ref: refBy(readSlotMapping, refSlotMapping),
		Bind: bindBy(readSlotMapping, bindSlotMapping), Compare: exactly("slot_mapping"),
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
		table := permutation[int32](rng, len(queries)*width, len(queries)*width+100)
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
	Seq    Array `in:"seq_lens i32 R"`
	Start  Array `in:"query_start_loc i32 R+1"`
	Table  Array `in:"block_table+ i32 R W"`
	Page   int   `in:"block_size"`
	Ratio  int   `in:"compress_ratio"`
	Tokens int   `in:"num_tokens=-1"` // below 0: as many as there are

	R, W int
}

// readSlotMapping reads a case. The mapping's length is that of the recorded result, or the
// parameter num_tokens, or the number of real tokens.
func readSlotMapping(c Case) (s slotMappingInput, err error) {
	if s, err = fields[slotMappingInput](c); err != nil {
		return s, err
	}
	if want, ok := c.Want["slot_mapping"]; ok {
		s.Tokens = want.Len()
	} else if starts := s.Start.I32(); s.Tokens < 0 {
		s.Tokens = int(starts[len(starts)-1])
	}
	if s.Tokens < 0 {
		return s, fmt.Errorf("verify: slot mapping: %d tokens: %w", s.Tokens, vectors.ErrFormat)
	}
	return s, nil
}

func refSlotMapping(s slotMappingInput) (Arrays, error) {
	slots := make([]int64, s.Tokens)
	if err := cache.SlotMappingRef(slots, s.Start.I32(), s.Seq.I32(), s.Table.I32(), s.W, s.Page, s.Ratio); err != nil {
		return nil, err
	}
	return Arrays{"slot_mapping": vectors.FromI64(slots, s.Tokens)}, nil
}

func bindSlotMapping(b Build, s slotMappingInput) (Bound, error) {
	op, err := cache.NewSlotMapping(b.Dev, cache.SlotMappingConfig{Page: s.Page, Ratio: s.Ratio})
	return bound(op, err, func(r *Rig) Launch {
		args := cache.SlotMappingArgs{
			QueryStart: r.In(s.Start, tensor.I32), SeqLens: r.In(s.Seq, tensor.I32), Table: r.In(s.Table, tensor.I32),
			Slots: r.Out(tensor.I64, s.Tokens),
		}
		return launch(op, args, outs{"slot_mapping": args.Slots})
	})
}
