package numfmt

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// BF16Encode rounds x to the nearest bf16, ties to even, and returns its 16
// bits. A finite x beyond the largest bf16 becomes an infinity; a NaN keeps
// its sign and upper payload bits and is made quiet.
func BF16Encode(x float32) uint16 {
	u := math.Float32bits(x)
	if u&0x7FFFFFFF > 0x7F800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7FFF + (u>>16)&1) >> 16)
}

// BF16Decode returns the value of 16 bf16 bits. It is exact.
func BF16Decode(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// BF16Round is the value that a trip through bf16 leaves of x.
func BF16Round(x float32) float32 { return BF16Decode(BF16Encode(x)) }

// Bits of two f32 in a word: rounding adds half of a bf16's last place, without that of a tie to an
// even number; exponents of infinities and NaN are all ones.
const (
	twoHalves    = 0x00007FFF_00007FFF
	twoOnes      = 0x00000001_00000001
	twoUpper     = 0x0000FFFF_0000FFFF
	twoExponents = 0x7F800000_7F800000
	twoLowest    = 0x00800000_00800000
	twoSigns     = 0x80000000_80000000
)

// BF16EncodeSlice writes the bf16 bits of src to dst, which must be at least
// as long, and returns the part of dst that was written. A nil dst is
// allocated.
func BF16EncodeSlice(dst []uint16, src []float32) []uint16 {
	if dst == nil {
		dst = make([]uint16, len(src))
	}
	dst = dst[:len(src)]
	from, to := Bytes(src), Bytes(dst)
	for len(from) >= 16 && len(to) >= 8 {
		a, b := le.Uint64(from), le.Uint64(from[8:])
		if ((a&twoExponents+twoLowest)|(b&twoExponents+twoLowest))&twoSigns != 0 {
			for i := range 4 {
				le.PutUint16(to[2*i:], BF16Encode(math.Float32frombits(le.Uint32(from[4*i:]))))
			}
		} else {
			a = (a + twoHalves + a>>16&twoOnes) >> 16 & twoUpper
			b = (b + twoHalves + b>>16&twoOnes) >> 16 & twoUpper
			le.PutUint64(to, (a|a>>16)&math.MaxUint32|(b|b>>16)<<32)
		}
		from, to = from[16:], to[8:]
	}
	for i := len(src) &^ 3; i < len(src); i++ {
		dst[i] = BF16Encode(src[i])
	}
	return dst
}

// BF16DecodeSlice writes the values of the bf16 bits in src to dst, which must
// be at least as long, and returns the part of dst that was written. A nil dst
// is allocated.
func BF16DecodeSlice(dst []float32, src []uint16) []float32 {
	if dst == nil {
		dst = make([]float32, len(src))
	}
	dst = dst[:len(src)]
	from, to := Bytes(src), Bytes(dst)
	for len(from) >= 8 && len(to) >= 16 {
		x := le.Uint64(from)
		le.PutUint64(to, x<<16&0xFFFF0000|x<<32&0xFFFF0000_00000000)
		le.PutUint64(to[8:], x>>16&0xFFFF0000|x&0xFFFF0000_00000000)
		from, to = from[8:], to[16:]
	}
	for i := len(src) &^ 3; i < len(src); i++ {
		dst[i] = BF16Decode(src[i])
	}
	return dst
}

var le = binary.LittleEndian

// Bytes returns the memory that a slice of numbers has, little-endian as on all hosts of Vulkan
// devices.
func Bytes[E any](s []E) []byte {
	var e E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(e)))
}
