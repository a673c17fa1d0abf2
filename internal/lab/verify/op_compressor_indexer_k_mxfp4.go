package verify

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

func init() {
	Register(compressorOp("compressor_indexer_k_mxfp4", cache.IndexKeyMXFP4, []cache.Compression{cache.C4Index}, func(seed uint64) []Case {
		return slices.Concat(random4(cache.C4Index, cache.IndexKeyMXFP4)(seed),
			randomRatios(ratiosMXFP4, cache.IndexDim, cache.IndexKeyMXFP4)(seed),
			compressorCases(seed+43, cache.C2Index, cache.IndexKeyMXFP4, latentSpecs(cache.C2Index, cache.IndexKeyMXFP4, 0)),
			compressorCases(seed+44, cache.C1Index, cache.IndexKeyMXFP4, latentSpecs(cache.C1Index, cache.IndexKeyMXFP4, 0)))
	}))
}
