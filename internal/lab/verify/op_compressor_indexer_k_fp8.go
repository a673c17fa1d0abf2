package verify

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

func init() {
	Register(compressorOp("compressor_indexer_k_fp8", cache.IndexKeyFP8, []cache.Compression{cache.C4Index}, func(seed uint64) []Case {
		return slices.Concat(random4(cache.C4Index, cache.IndexKeyFP8)(seed), randomRatios(ratiosFP8, cache.IndexDim, cache.IndexKeyFP8)(seed),
			compressorCases(seed+43, cache.C2Index, cache.IndexKeyFP8, latentSpecs(cache.C2Index, cache.IndexKeyFP8, 0)),
			compressorCases(seed+44, cache.C1Index, cache.IndexKeyFP8, latentSpecs(cache.C1Index, cache.IndexKeyFP8, 0)))
	}))
}
