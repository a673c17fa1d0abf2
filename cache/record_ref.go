package cache

import (
	"encoding/binary"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// EncodeRef is the definition of a record's bytes: row and scales of one slot, RowBytes and
// ScaleBytes long, from the 512 numbers x, rotated and rounded to bf16.
//
//	E4M3 codes:  s = the least power of two with 448 s >= max(amax, 1e-4), code = E4M3(x/s)
//	E2M1 codes:  s = E4M3(max(amax, 6*2^-9)/6), code = E2M1(x/s), both to nearest, ties to even
//
// amax is the largest magnitude of the numbers that share the scale.
func (r Record) EncodeRef(row, scales []byte, x []uint16) { r.of().encode(row, scales, x) }

// encodeE4M3 writes E4M3 codes with a UE8M0 scale per block numbers.
func encodeE4M3(row, scales []byte, x []uint16, block int) {
	for b := range scales {
		scales[b] = numfmt.UE8M0Encode(amaxOf(x[b*block:(b+1)*block]), numfmt.KCacheEps, numfmt.E4M3InvMax)
		for d := b * block; d < (b+1)*block; d++ {
			row[d] = numfmt.E4M3Encode(numfmt.BF16Decode(x[d]) * numfmt.UE8M0Inverse(scales[b]))
		}
	}
}

// amaxOf is the largest magnitude among bf16 numbers.
func amaxOf(x []uint16) (m float32) {
	for _, b := range x {
		m = max(m, abs(numfmt.BF16Decode(b)))
	}
	return m
}

// DecodeRef writes the 512 numbers of a slot to x as bf16, code times scale. No product needs to be
// rounded.
func (r Record) DecodeRef(x []uint16, row, scales []byte) { r.of().decode(x, row, scales) }

// decodeE4M3 writes the numbers of codes with a UE8M0 scale per block.
func decodeE4M3(x []uint16, row, scales []byte, block int) {
	for d := range x {
		x[d] = numfmt.BF16Encode(numfmt.E4M3Decode(row[d]) * numfmt.UE8M0Scale(scales[d/block]))
	}
}

// DecodeKeyRef writes the 128 numbers of an indexer key to x as bf16. It undoes QuantiseKeyRef.
func DecodeKeyRef(x []uint16, format IndexKeyFormat, codes []byte, scale [IndexScaleBytes]byte) {
	for d := range x {
		if format == IndexKeyFP8 {
			x[d] = numfmt.BF16Encode(numfmt.E4M3Decode(codes[d]) * math.Float32frombits(binary.LittleEndian.Uint32(scale[:])))
			continue
		}
		even, odd := numfmt.E2M1Unpack(codes[d/2])
		x[d] = numfmt.BF16Encode(numfmt.E2M1Decode([2]byte{even, odd}[d%2]) * numfmt.UE8M0Scale(scale[d/32]))
	}
}
