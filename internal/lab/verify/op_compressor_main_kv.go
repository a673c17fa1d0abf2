package verify

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

func init() {
	Register(compressorOp("compressor_main_kv", 0, []cache.Compression{C4Main, C128Main}, func(seed uint64) []Case {
		return slices.Concat(random4(C4Main, 0)(seed), random128(seed), randomRatios(ratios, cache.D, 0)(seed),
			compressorCases(seed+41, C2Main, 0, latentSpecs(C2Main, 0, cache.RecordFP4, cache.RecordV4)),
			compressorCases(seed+42, C1Main, 0, latentSpecs(C1Main, 0, cache.RecordFP4, cache.RecordFP8)))
	}))
}
