package verify

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

func init() {
	Register(compressorOp("compressor_main_kv", 0, []cache.Compression{cache.C4Main, cache.C128Main}, func(seed uint64) []Case {
		return slices.Concat(random4(cache.C4Main, 0)(seed), random128(seed), randomRatios(ratios, cache.D, 0)(seed))
	}))
}
