package numfmt

import "encoding/binary"

// Special says which elements of a format are infinite or none: all bits of Mask are set in them.
type Special struct {
	Bytes int // of an element: 1, 2, 4 or 8
	Mask  uint64
}

// The formats that have such elements.
var (
	SpecialF64   = Special{8, 0x7FF0_0000_0000_0000}
	SpecialF32   = Special{4, 0x7F80_0000}
	SpecialBF16  = Special{2, 0x7F80}
	SpecialF16   = Special{2, 0x7C00}
	SpecialE4M3  = Special{1, 0x7F}
	SpecialUE8M0 = Special{1, 0xFF}
)

// Find returns the number of the first such element of little-endian data, and its bits; -1 if all
// are finite. It looks at eight bytes at a time.
func (s Special) Find(data []byte) (n int, bits uint64) {
	ones, high, mask := uint64(0), uint64(0), uint64(0)
	for i := 0; i < 64; i += 8 * s.Bytes {
		ones, high, mask = ones|1<<i, high|1<<(i+8*s.Bytes-1), mask|s.Mask<<i
	}
	at := 0
	for ; at+8 <= len(data); at += 8 {
		// It is one if nothing of the mask is missing in it.
		missing := ^binary.LittleEndian.Uint64(data[at:]) & mask
		if (missing-ones)&^missing&high != 0 {
			break
		}
	}
	for ; at+s.Bytes <= len(data); at += s.Bytes {
		var word [8]byte
		copy(word[:], data[at:at+s.Bytes])
		if v := binary.LittleEndian.Uint64(word[:]); v&s.Mask == s.Mask {
			return at / s.Bytes, v
		}
	}
	return -1, 0
}
