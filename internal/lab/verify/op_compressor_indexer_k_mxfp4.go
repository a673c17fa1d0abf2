package verify

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

func init() {
	Register(compressorOp("compressor_indexer_k_mxfp4", cache.IndexKeyMXFP4, []cache.Compression{C4Index}, func(seed uint64) []Case {
		return slices.Concat(random4(C4Index, cache.IndexKeyMXFP4)(seed),
			randomRatios(ratiosMXFP4, cache.IndexDim, cache.IndexKeyMXFP4)(seed),
			compressorCases(seed+43, C2Index, cache.IndexKeyMXFP4, latentSpecs(C2Index, cache.IndexKeyMXFP4, 0)),
			compressorCases(seed+44, C1Index, cache.IndexKeyMXFP4, latentSpecs(C1Index, cache.IndexKeyMXFP4, 0)))
	}))
}
