package cache

// References of parts of operations.
var (
	GatherRunsRef = gatherRunsRef
	HalvesRef     = halvesRef
)

// SlotOffset is the byte of a pool at which a slot begins.
func (l StateLayout) SlotOffset(slot int64) int64 { return l.slotOffset(slot) }

// The compressors of DeepSeek-V4.
var (
	C4Main   = Compression{Dim: D, Ratio: 4, Overlap: true}        // K entries of C4A layers
	C4Index  = Compression{Dim: IndexDim, Ratio: 4, Overlap: true} // indexer keys of C4A layers
	C128Main = Compression{Dim: D, Ratio: 128}                     // K entries of C128A layers
)

// The compressors of DeepSeek-V4.1. Index keys are made of a product of the latents.
//
// Source: classes Compressor and Indexer of DeepSeek-V4.1's inference/model.py.
var (
	C2Main  = Compression{Dim: D, Ratio: 2, Latent: true}                       // entries of two tokens
	C1Main  = Compression{Dim: D, Ratio: 1, Latent: true, Ungated: true}        // entries of one token
	C2Index = Compression{Dim: IndexDim, Ratio: 2, Latent: true, Ungated: true} // index keys of C2Main's entries
	C1Index = Compression{Dim: IndexDim, Ratio: 1, Latent: true, Ungated: true} // index keys of C1Main's entries
)
