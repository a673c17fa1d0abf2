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
		Name: "dequant_gather_slots", Class: ClassExact, Variants: cache.GatherSlotsVariants,
		Random: randomGatherSlots, Ref: refGatherSlots, Bind: bindGatherSlots, Compare: exactly("out"),
	})
}

func randomGatherSlots(seed uint64) []Case {
	var cases []Case
	for i, n := range []int{1, 2, 17, 61, 69, 321} {
		for j := range 3 {
			rng := rand.New(rand.NewPCG(seed, uint64(3*i+j)))
			l := pageShapes[(i+4*j)%len(pageShapes)]
			if j == 2 {
				l = recordShapes[i%len(recordShapes)]
			}
			pages := n/l.Page + 3
			pool, idx := poisonedPool(pages, l), make([]int32, n)
			for k := range idx {
				switch s := rng.IntN(pages * l.Page); {
				case n > 2 && rng.IntN(8) == 0:
					idx[k] = []int32{-1, -1, -1 << 31, int32(pages * l.Page), 1<<31 - 1}[rng.IntN(5)]
				default: // the same slot may occur twice
					idx[k] = int32(s)
					fillSlot(rng, pool, l, int64(s))
				}
			}
			cases = append(cases, Case{
				Name:   fmt.Sprintf("s%d_%s_page%d_stride%d", n, l.Record, l.Page, l.Stride),
				Params: layoutParams(l),
				In:     Arrays{"cache": pool, "indices": vectors.FromI32(idx, n)},
			})
		}
	}
	return append(cases, everyCode())
}

// everyCode is a case with every E4M3 code but NaN under every scale that finite
// rows can have, from 2^-22 up to where 448 overflows bf16.
func everyCode() Case {
	l := cache.Layout{Page: 64, Stride: 37440}
	var rows [][cache.NopeDim]byte // 254 codes fill four blocks of the seven
	var scales [][cache.Blocks]byte
	for s := 105; s <= 246; s++ {
		var row [cache.NopeDim]byte
		var sc [cache.Blocks]byte
		for d := range row {
			row[d] = byte(d)
			if d&0x7F == 0x7F {
				row[d] = 0
			}
		}
		for b := range sc {
			sc[b] = byte(s)
		}
		rows, scales = append(rows, row), append(scales, sc)
	}
	pages := (len(rows) + l.Page - 1) / l.Page
	pool, idx := poisonedPool(pages, l), make([]int32, len(rows))
	for i := range rows {
		copy(pool.Data[l.RowOffset(int64(i)):], rows[i][:])
		copy(pool.Data[l.ScaleOffset(int64(i)):], scales[i][:])
		idx[i] = int32(i)
	}
	return Case{
		Name: "every_code_and_scale", About: "254 codes under scale bytes 105..246",
		Params: map[string]any{"block_size": l.Page, "block_stride_bytes": l.Stride},
		In:     Arrays{"cache": pool, "indices": vectors.FromI32(idx, len(idx))},
	}
}

func gatherSlotsInput(c Case) (pool, indices Array, l cache.Layout, err error) {
	in := c.Input()
	pool, l = inputPool(in, "cache")
	indices = in.Array("indices", vectors.I32, -1)
	return pool, indices, l, in.Err()
}

func refGatherSlots(c Case) (Arrays, error) {
	pool, indices, l, err := gatherSlotsInput(c)
	if err != nil {
		return nil, err
	}
	out := make([]uint16, indices.Len()*cache.D)
	if err := cache.GatherSlotsRef(out, pool.Data, l, indices.I32()); err != nil {
		return nil, err
	}
	return Arrays{"out": vectors.FromU16(out, indices.Len(), cache.D)}, nil
}

func bindGatherSlots(b Build, c Case) (Bound, error) {
	pool, indices, l, err := gatherSlotsInput(c)
	if err != nil {
		return Bound{}, err
	}
	op, err := cache.NewGatherSlots(b.Dev, cache.GatherSlotsConfig{Page: l.Page, Record: l.Record, Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		args := cache.GatherSlotsArgs{
			Out: r.Out(tensor.BF16, indices.Len(), cache.D), Cache: kvCache(r.In(pool, tensor.U8), l), Indices: r.In(indices, tensor.I32),
		}
		return Launch{Out: map[string]tensor.Tensor{"out": args.Out},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, args) }}
	}}, nil
}
