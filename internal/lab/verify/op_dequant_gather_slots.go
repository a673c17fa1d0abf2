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
		Name: "dequant_gather_slots", Class: ClassExact, Variants: opkit.Builds("kv_gather_slots"),
		Of:     Of{"cache.GatherSlots", "kv_gather", ""},
		Random: randomGatherSlots, Ref: refBy(fields, refGatherSlots), Bind: bindBy(fields, bindGatherSlots), Compare: exactly("out"),
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

// everyCode returns a case with every E4M3 code but NaN under every scale that finite
// rows can have, from 2^-22 up to where 448 overflows bf16.
func everyCode() Case {
	l := cache.Layout{Page: 64, Stride: 37440}
	var rows [][cache.NopeDim]byte // 254 codes fill four blocks of the seven
	var scales [][blocksV4]byte
	for s := 105; s <= 246; s++ {
		var row [cache.NopeDim]byte
		var sc [blocksV4]byte
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

type gatherSlotsInput struct {
	Pool    Array        `in:"cache u8 Pages Stride"`
	Indices Array        `in:"indices i32 N"`
	Page    int          `in:"block_size"`
	Record  cache.Record `in:"record=0"`

	Pages, Stride, N int
}

func (x *gatherSlotsInput) layout() cache.Layout {
	return cache.Layout{Page: x.Page, Stride: x.Stride, Record: x.Record}
}

func refGatherSlots(x gatherSlotsInput) (Arrays, error) {
	out := make([]uint16, x.N*cache.D)
	err := cache.GatherSlotsRef(out, x.Pool.Data, x.layout(), x.Indices.I32())
	return Arrays{"out": vectors.FromU16(out, x.N, cache.D)}, err
}

func bindGatherSlots(b Build, x gatherSlotsInput) (Bound, error) {
	op, err := cache.NewGatherSlots(b.Dev, cache.PagesConfig{Page: x.Page, Record: x.Record, MaxBytes: b.MaxBytes, Variant: b.Variant})
	return bound(op, err, func(r *Rig) Launch {
		pool := r.Pool(x.Pool, Pages{Page: x.Page})
		a := cache.GatherSlotsArgs{Out: r.Out(tensor.BF16, x.N, cache.D), Cache: kvCache(pool.Tensor, x.layout()),
			Indices: r.Index(pool, x.Indices, tensor.I32, true)}
		return launch(op, a, outs{"out": a.Out})
	})
}
