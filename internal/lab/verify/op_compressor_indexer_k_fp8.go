package verify

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

func init() {
	Register(compressorOp("compressor_indexer_k_fp8", cache.IndexKeyFP8, []cache.Compression{C4Index}, func(seed uint64) []Case {
		return slices.Concat(random4(C4Index, cache.IndexKeyFP8)(seed), randomRatios(ratiosFP8, cache.IndexDim, cache.IndexKeyFP8)(seed),
			compressorCases(seed+43, C2Index, cache.IndexKeyFP8, latentSpecs(C2Index, cache.IndexKeyFP8, 0)),
			compressorCases(seed+44, C1Index, cache.IndexKeyFP8, latentSpecs(C1Index, cache.IndexKeyFP8, 0)))
	}))
}
