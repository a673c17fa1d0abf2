package gguf

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// Type is the type of a tensor's elements, by its number in the format.
type Type uint32

// Format describes how numbers are stored: a row of them is a whole number of blocks.
type Format struct {
	Type   Type
	Name   string // as ggml spells it
	Values int    // of a block
	Bytes  int    // of a block
	// decode writes the values of a block, or as many single floats as dst has; nil for whole
	// numbers and for blocks whose size alone is known.
	decode func(dst []float32, b []byte)
	halves []int               // where a block has the f16 that its values are products of
	finite func(b []byte) bool // whether a block without such a place is finite; nil if all are
}

// formats has a row for each type that files have. A format of blocks is described in a file of its
// own. The products are those of ggml in its order, so the values are the same bit for bit.
var formats = [...]Format{
	{0, "F32", 1, 4, f32, nil, nil},
	{1, "F16", 1, 2, f16, []int{0}, nil},
	{30, "BF16", 1, 2, bf16, nil, nil},
	{24, "I8", 1, 1, nil, nil, nil},
	{25, "I16", 1, 2, nil, nil, nil},
	{26, "I32", 1, 4, nil, nil, nil},
	{27, "I64", 1, 8, nil, nil, nil},
	{28, "F64", 1, 8, nil, nil, nil},

	{8, "Q8_0", 32, 34, q8_0, []int{0}, nil},
	{2, "Q4_0", 32, 18, q4_0, []int{0}, nil},
	{6, "Q5_0", 32, 22, q5_0, []int{0}, nil},
	{20, "IQ4_NL", 32, 18, iq4NL, []int{0}, nil},
	{39, "MXFP4", 32, 17, mxfp4, nil, mxfp4Finite},
	{40, "NVFP4", 64, 36, nvfp4, nil, nil},

	{10, "Q2_K", 256, 84, q2K, []int{80, 82}, nil},
	{11, "Q3_K", 256, 110, q3K, []int{108}, nil},
	{12, "Q4_K", 256, 144, q4K, []int{0, 2}, nil},
	{13, "Q5_K", 256, 176, q5K, []int{0, 2}, nil},
	{14, "Q6_K", 256, 210, q6K, []int{208}, nil},
	{19, "IQ1_S", 256, 50, iq1S, []int{0}, nil},
	{29, "IQ1_M", 256, 56, iq1M, nil, iq1MFinite},
	{16, "IQ2_XXS", 256, 66, iq2XXS, []int{0}, nil},
	{17, "IQ2_XS", 256, 74, iq2XS, []int{0}, nil},
	{22, "IQ2_S", 256, 82, iq2S, []int{0}, nil},
	{18, "IQ3_XXS", 256, 98, iq3XXS, []int{0}, nil},
	{21, "IQ3_S", 256, 110, iq3S, []int{0}, nil},
	{23, "IQ4_XS", 256, 136, iq4XS, []int{0}, nil},

	{3, "Q4_1", 32, 20, nil, nil, nil},
	{7, "Q5_1", 32, 24, nil, nil, nil},
	{34, "TQ1_0", 256, 54, nil, nil, nil},
	{35, "TQ2_0", 256, 66, nil, nil, nil},
}

// FormatOf returns the format of a type, nil for one that is not known.
func FormatOf(t Type) *Format {
	for i := range formats {
		if formats[i].Type == t {
			return &formats[i]
		}
	}
	return nil
}

// FormatNamed returns the format of that spelling, nil for one that is not known.
func FormatNamed(name string) *Format {
	for i := range formats {
		if formats[i].Name == name {
			return &formats[i]
		}
	}
	return nil
}

// Decoded names the formats whose numbers can be read as f32, with commas.
func Decoded() string {
	var names []string
	for i := range formats {
		if formats[i].Decodes() {
			names = append(names, formats[i].Name)
		}
	}
	return strings.Join(names, ", ")
}

// Decodes reports whether the format's numbers can be read as f32.
func (f *Format) Decodes() bool { return f.decode != nil }

// Finite reports whether all values of a block are finite, whatever its codes are. Of single floats
// it says nothing but of F16.
func (f *Format) Finite(b []byte) bool {
	for _, h := range f.halves {
		if !finiteHalf(le.Uint16(b[h:])) {
			return false
		}
	}
	return f.finite == nil || f.finite(b)
}

// Size returns the bytes of n numbers, which are whole blocks.
func (f *Format) Size(n int) int { return n / f.Values * f.Bytes }

// Decode writes the numbers of the blocks in src to dst, which has room for just as many. It is the
// definition of the format.
func (f *Format) Decode(dst []float32, src []byte) {
	if f.Values == 1 {
		f.decode(dst, src)
		return
	}
	for len(dst) > 0 {
		f.decode(dst[:f.Values], src[:f.Bytes])
		dst, src = dst[f.Values:], src[f.Bytes:]
	}
}

var le = binary.LittleEndian

func f32(dst []float32, b []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(le.Uint32(b[4*i:]))
	}
}

func f16(dst []float32, b []byte) {
	for i := range dst {
		dst[i] = half(b[2*i:])
	}
}

func bf16(dst []float32, b []byte) {
	for i := range dst {
		dst[i] = numfmt.BF16Decode(le.Uint16(b[2*i:]))
	}
}

// finiteHalf reports whether an f16 is a finite number.
func finiteHalf(bits uint16) bool { return bits&0x7C00 != 0x7C00 }

// half is the IEEE half that b begins with.
func half(b []byte) float32 { return numfmt.F16Decode(le.Uint16(b)) }
