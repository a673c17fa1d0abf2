package verify

import "github.com/vkmla/vkmla/cache"

func init() {
	Register(compressorOp("compressor_indexer_k_fp8", cache.IndexKeyFP8, []cache.Compression{cache.C4Index}, random4(cache.C4Index, cache.IndexKeyFP8)))
}
