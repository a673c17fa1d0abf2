package projection

import (
	"encoding/binary"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
)

// q4KBlock is the number of values of a row of Q4_K that share an f16 scale and an f16 minimum.
const q4KBlock = 256

// formatQ4K is GGUF's Q4_K: 32 numbers have a scale and a minimum of six bits, 256 have two f16
// that these are multiplied by. Its blocks of 144 bytes are taken apart. A word of Data has eight
// numbers, each pair of neighbours 16 bits apart, so that a mask takes them in order. Four words of
// Scale belong to 256 numbers: both f16; two words of bytes, with the low four bits of each scale
// and, above them, of its minimum; and a word of nibbles with the high two bits of each. The f16
// are kept relative to the largest of their row, so that no weight leaves the range of f16.
var formatQ4K = format{name: "q4_k", codec: codecQ4K, quad: 32, data: tensor.U8, each: 2,
	scale: tensor.U32, scaleRows: 1, scaleCut: q4KBlock / 4, rowScale: true, rounded: true,
	overlaps: true, twoSets: true, unroll: 1,
	value: func(_ *format, h *LinearHost, row, k int) float64 {
		le, i := binary.LittleEndian, row*h.K+k
		code := le.Uint32(h.Data[i/8*4:]) >> (4*(i%8/2) + 16*(i%2)) & 15
		words, part := h.Scale[i/q4KBlock*16:], i%q4KBlock/32
		low, high := uint32(words[4+part]), le.Uint32(words[12:])>>(4*part)
		scale := numfmt.F16Decode(le.Uint16(words)) * float32(low&15|high&3<<4)
		least := numfmt.F16Decode(le.Uint16(words[2:])) * float32(low>>4|high>>2&3<<4)
		x := float32(scale * float32(code)) // converted, so that nothing fuses
		return float64(x - least)
	},
	blocks: "Q4_K", blockBytes: 144, blockValues: q4KBlock, repack: repackQ4K}

// repackQ4K is exact unless an f16 of the row is 64 or more and another is far smaller.
func repackQ4K(data, scales, blocks []byte) float32 {
	le, n, largest := binary.LittleEndian, len(blocks)/144, uint16(0)
	for b := range n {
		largest = max(largest, le.Uint16(blocks[144*b:])&0x7FFF, le.Uint16(blocks[144*b+2:])&0x7FFF)
	}
	factor := rowFactor(largest, 5)
	for b := range n {
		block := blocks[144*b : 144*b+144]
		if data != nil {
			q4KCodes(data[128*b:128*b+128], block[16:])
		}
		if scales == nil {
			continue
		}
		words := scales[16*b : 16*b+16]
		for i := range 2 {
			le.PutUint16(words[2*i:], numfmt.F16Encode(numfmt.F16Decode(le.Uint16(block[2*i:]))/factor))
		}
		s := block[4:16] // six bits of the first four; the others' low four bits come after them, the rest above them
		for i := range 4 {
			words[4+i] = s[i]&15 | s[4+i]&15<<4
			words[8+i] = s[8+i]
			nibble := uint(s[i]>>4&3 | s[4+i]>>4&3<<2)
			other := uint(s[i]>>6 | s[4+i]>>6<<2)
			words[12+i/2] = words[12+i/2]&^(15<<(i%2*4)) | byte(nibble<<(i%2*4))
			words[14+i/2] = words[14+i/2]&^(15<<(i%2*4)) | byte(other<<(i%2*4))
		}
	}
	return factor
}

// q4KCodes brings the codes of a block into the order of Data. Bytes of a block have a number of 32
// in the low nibble, and one of the next 32 in the high one.
func q4KCodes(data, codes []byte) {
	gather := func(v uint64) uint32 { // every fourth nibble
		v &= 0x000F000F000F000F
		return uint32((v | v>>12 | v>>24 | v>>36) & 0xFFFF)
	}
	for i := range 32 { // words of eight numbers
		part, eight := i/4, i%4
		v := binary.LittleEndian.Uint64(codes[part/2*32+eight*8:]) >> (part % 2 * 4)
		binary.LittleEndian.PutUint32(data[4*i:], gather(v)|gather(v>>8)<<16)
	}
}
