package projection

import (
	"encoding/binary"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
)

// q8Block is the number of values of a row of Q8_0 that share a scale.
const q8Block = 32

// formatQ8_0 is GGUF's Q8_0. Its blocks of 34 bytes, an f16 scale and 32 whole numbers, are taken
// apart, since every second one does not begin at a word. Scales are kept relative to the largest
// of their row, so that no product leaves the range of f16.
var formatQ8_0 = format{name: "q8_0", codec: codecQ8_0, quad: 16, data: tensor.U8, each: 1,
	scale: tensor.F16, scaleRows: 1, scaleCut: q8Block, rowScale: true, rounded: true,
	alike: alikeAlways, unroll: 1,
	value: func(_ *format, h *LinearHost, row, k int) float64 {
		i := row*h.K + k
		return float64(int8(h.Data[i])) * float64(numfmt.F16Decode(binary.LittleEndian.Uint16(h.Scale[i/q8Block*2:])))
	},
	blocks: "Q8_0", blockBytes: 34, blockValues: q8Block, repack: repackQ8_0}

// repackQ8_0 is exact unless a scale of the row is 512 or more and another is far smaller.
func repackQ8_0(data, scales, blocks []byte) float32 {
	le, n, largest := binary.LittleEndian, len(blocks)/34, uint16(0)
	for b := range n {
		largest = max(largest, le.Uint16(blocks[34*b:])&0x7FFF)
		if data != nil {
			copy(data[q8Block*b:], blocks[34*b+2:34*b+34])
		}
	}
	factor := rowFactor(largest, 8)
	for b := range len(scales) / 2 {
		le.PutUint16(scales[2*b:], numfmt.F16Encode(numfmt.F16Decode(le.Uint16(blocks[34*b:]))/factor))
	}
	return factor
}

// rowFactor returns the power of two by which f16 numbers of a row are divided, so that the largest
// has the exponent e.
func rowFactor(largest uint16, e int) float32 {
	if largest == 0 {
		return 1
	}
	_, exponent := math.Frexp(float64(numfmt.F16Decode(largest)))
	return float32(math.Ldexp(1, exponent-1-e))
}
