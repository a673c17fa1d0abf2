package verify

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

func init() {
	Register(compressorOp("compressor_main_kv", 0, []cache.Compression{cache.C4Main, cache.C128Main}, func(seed uint64) []Case {
		return slices.Concat(random4(cache.C4Main, 0)(seed), random128(seed), randomRatios(ratios, cache.D, 0)(seed),
			compressorCases(seed+41, cache.C2Main, 0, latentSpecs(cache.C2Main, 0, cache.RecordFP4, cache.RecordV4)),
			compressorCases(seed+42, cache.C1Main, 0, latentSpecs(cache.C1Main, 0, cache.RecordFP4, cache.RecordFP8)))
	}))
}
