package verify

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
)

func init() {
	Register(compressorOp("compressor_indexer_k_mxfp4", cache.IndexKeyMXFP4, []cache.Compression{cache.C4Index}, func(seed uint64) []Case {
		return slices.Concat(random4(cache.C4Index, cache.IndexKeyMXFP4)(seed), randomRatios(ratiosMXFP4, cache.IndexDim, cache.IndexKeyMXFP4)(seed))
	}))
}
