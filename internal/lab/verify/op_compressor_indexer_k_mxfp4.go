package verify

import "github.com/vkmla/vkmla/cache"

func init() {
	Register(compressorOp("compressor_indexer_k_mxfp4", cache.IndexKeyMXFP4, []cache.Compression{cache.C4Index}, random4(cache.C4Index, cache.IndexKeyMXFP4)))
}
