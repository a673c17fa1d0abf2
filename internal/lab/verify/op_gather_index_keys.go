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
	for name, format := range map[string]cache.IndexKeyFormat{
		"gather_index_keys_fp8": cache.IndexKeyFP8, "gather_index_keys_mxfp4": cache.IndexKeyMXFP4,
	} {
		Register(Op{
			Name: name, Class: ClassExact, Variants: cache.GatherIndexKeysVariants,
			Random:  func(seed uint64) []Case { return randomGatherKeys(seed, format) },
			Ref:     func(c Case) (Arrays, error) { return refGatherKeys(c, format) },
			Bind:    func(b Build, c Case) (Bound, error) { return bindGatherKeys(b, c, format) },
			Compare: exactly("codes", "scales"),
			Timing:  Timing{Suite: "indexer", Sizes: func(o SizeOptions) []Size { return gatherKeysSizes(o, format) }},
		})
	}
}

// randomGatherKeys makes requests of random lengths, some empty, with tables that are too
// narrow or name pages outside the pool.
func randomGatherKeys(seed uint64, format cache.IndexKeyFormat) []Case {
	var cases []Case
	for i, n := range sizes {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		page, requests := []int{64, 1, 16, 3, 64, 2}[i], 1+rng.IntN(7)
		starts, longest := make([]int32, requests+1), 0
		for r := 1; r <= requests; r++ {
			starts[r] = starts[r-1] + int32(rng.IntN(2)*rng.IntN(n-int(starts[r-1])+1))
			if r == requests {
				starts[r] = int32(n)
			}
			longest = max(longest, int(starts[r]-starts[r-1]))
		}
		width := (longest + page - 1) / page
		if i%3 == 2 {
			width = (width + 1) / 2 // too narrow: zeros
		}
		table := randomTable(rng, requests, width, i > 3)
		l := cache.IndexKeyLayout{Page: page, Stride: (page*(format.RowBytes()+cache.IndexScaleBytes)+15)/16*16 + 16*i, Format: format}
		pages := requests*width + 5 // randomTable may name two more
		pool := vectors.Filled(0xFF, vectors.U8, pages, l.Stride)
		fillKeys(rng, pool.Data, l, pages, logitsAnyCode)
		cases = append(cases, Case{
			Name: fmt.Sprintf("t%d_r%d_page%d", n, requests, page), Params: map[string]any{"block_size": page},
			In: Arrays{"cache": pool, "block_table": table, "starts": vectors.FromI32(starts, requests+1)},
		})
	}
	return cases
}

func readGatherKeys(c Case, format cache.IndexKeyFormat) (pool, table, starts Array, l cache.IndexKeyLayout, rows int, err error) {
	in := c.Input()
	pool, table = in.Array("cache", vectors.U8, -1, -1), in.Array("block_table", vectors.I32, -1, -1)
	starts = in.Array("starts", vectors.I32, table.Dim(0)+1)
	l = cache.IndexKeyLayout{Page: in.Int("block_size"), Stride: pool.Dim(1), Format: format}
	if v := starts.I32(); len(v) > 0 {
		rows = int(v[len(v)-1])
	}
	return pool, table, starts, l, rows, in.Err()
}

func refGatherKeys(c Case, format cache.IndexKeyFormat) (Arrays, error) {
	pool, table, starts, l, rows, err := readGatherKeys(c, format)
	if err != nil {
		return nil, err
	}
	codes, scales := vectors.Filled(poisonOther, vectors.U8, rows, format.RowBytes()), vectors.Filled(poisonOther, vectors.U8, rows, cache.IndexScaleBytes)
	err = cache.GatherIndexKeysRef(codes.Data, scales.Data, pool.Data, l, table.I32(), table.Dim(1), starts.I32())
	return Arrays{"codes": codes, "scales": scales}, err
}

func bindGatherKeys(b Build, c Case, format cache.IndexKeyFormat) (Bound, error) {
	pool, table, starts, l, rows, err := readGatherKeys(c, format)
	if err != nil {
		return Bound{}, err
	}
	op, err := cache.NewGatherIndexKeys(b.Dev, cache.GatherIndexKeysConfig{Page: l.Page, Format: format, MaxBytes: b.MaxBytes, Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	return Bound{op.Variant(), func(r *Rig) Launch {
		keys := r.Pool(pool, Pages{Page: l.Page, Spread: SpreadPages, Numbers: table.Len()})
		a := cache.GatherIndexKeysArgs{
			Keys: cache.IndexKeyCache{Pool: keys.Tensor, Layout: l}, Table: r.Index(keys, table, tensor.I32, false),
			Starts: r.Shared(starts, tensor.I32),
			Codes:  r.Out(tensor.U8, rows, format.RowBytes()), Scales: r.Out(tensor.U8, rows, cache.IndexScaleBytes),
		}
		return Launch{Out: map[string]tensor.Tensor{"codes": a.Codes, "scales": a.Scales},
			Record: func(rec *vk.Recorder) error { return op.Record(rec, a) }}
	}}, nil
}

// gatherKeysSizes are all keys of four requests.
func gatherKeysSizes(o SizeOptions, format cache.IndexKeyFormat) (all []Size) {
	const requests = 4
	for _, context := range o.contexts() {
		s := scoring{requests, context / 4, 1, format, false}
		rows := requests * s.entries
		bytes := 2 * rows * (format.RowBytes() + cache.IndexScaleBytes)
		x := s.size(0, 0)
		x.Name, x.Work, x.Touched = fmt.Sprintf("requests=%d/context=%d", requests, context), Work{Bytes: float64(bytes)}, bytes
		x.Make = func(rng *rand.Rand) Case {
			c := s.random(rng)
			starts := make([]int32, requests+1)
			for i := range starts {
				starts[i] = int32(i * s.entries)
			}
			return Case{Params: map[string]any{"block_size": keyPage},
				In: Arrays{"cache": c.In["cache"], "block_table": c.In["block_table"], "starts": vectors.FromI32(starts, requests+1)}}
		}
		all = append(all, x)
	}
	return all
}
