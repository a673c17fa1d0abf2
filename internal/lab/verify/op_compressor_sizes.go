package verify

import (
	"fmt"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
)

// longestCompressed is the longest sequence of a decode step of a compressor.
const longestCompressed = 4096

// compressorSizes are steps of a compressor. In a decode step every token is a request's own
// and completes a group; a prefill is one request from its beginning.
func compressorSizes(o SizeOptions, c cache.Compression, format cache.IndexKeyFormat) (all []Size) {
	for _, prefill := range []bool{false, true} {
		steps, mode := o.batches(), "decode"
		if prefill {
			steps, mode = o.prefill(), "prefill"
		}
		for _, t := range steps {
			closing := t
			if prefill {
				closing = t / c.Ratio
			}
			entry := cache.RecordV4.SlotBytes()
			if format != 0 {
				entry = format.RowBytes() + cache.IndexScaleBytes
			}
			saved := float64(t * 8 * c.Channels() * 2)
			pooled := float64(closing * (c.Window()*8*c.Dim + entry + 4*cache.RopeDim))
			all = append(all, Size{
				Name:    fmt.Sprintf("ratio=%d/%s/tokens=%d", c.Ratio, mode, t),
				Work:    Work{Bytes: saved + pooled},
				Parts:   map[string]Work{"save": {Bytes: saved}, "compress": {Bytes: pooled}},
				Touched: t*c.Window()*8*c.Dim + 16*t*c.Channels(),
				Make:    func(rng *rand.Rand) Case { return largeCompressor(rng, c, format, t, prefill) },
			})
		}
	}
	return all
}

func largeCompressor(rng *rand.Rand, c cache.Compression, format cache.IndexKeyFormat, tokens int, prefill bool) Case {
	spec := compressorSpec{c: c, format: format, statePage: 4, page: 64, f32: true}
	if !c.Overlap {
		spec.statePage, spec.page = 8, 64*4/c.Ratio
	}
	if prefill {
		spec.requests = [][2]int{{0, tokens}}
	} else {
		first := c.Window() / c.Ratio
		for range tokens {
			group := first + rng.IntN(longestCompressed/c.Ratio-first+1)
			spec.requests = append(spec.requests, [2]int{group*c.Ratio - 1, 1})
		}
	}
	return compressorCase(rng, spec)
}
