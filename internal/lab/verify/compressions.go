package verify

import "github.com/vkmla/vkmla/cache"

// The compressors of DeepSeek-V4.
var (
	C4Main   = cache.Compression{Dim: cache.D, Ratio: 4, Overlap: true}        // K entries of C4A layers
	C4Index  = cache.Compression{Dim: cache.IndexDim, Ratio: 4, Overlap: true} // indexer keys of C4A layers
	C128Main = cache.Compression{Dim: cache.D, Ratio: 128}                     // K entries of C128A layers
)

// The compressors of DeepSeek-V4.1. Index keys are made of a product of the latents.
//
// Source: classes Compressor and Indexer of DeepSeek-V4.1's inference/model.py.
var (
	C2Main  = cache.Compression{Dim: cache.D, Ratio: 2, Latent: true}                       // entries of two tokens
	C1Main  = cache.Compression{Dim: cache.D, Ratio: 1, Latent: true, Ungated: true}        // entries of one token
	C2Index = cache.Compression{Dim: cache.IndexDim, Ratio: 2, Latent: true, Ungated: true} // index keys of C2Main's entries
	C1Index = cache.Compression{Dim: cache.IndexDim, Ratio: 1, Latent: true, Ungated: true} // index keys of C1Main's entries
)

// Blocks of a slot of cache.RecordV4.
const (
	blocksV4 = 7  // E4M3 scales
	blockDim = 64 // codes that share one
)
