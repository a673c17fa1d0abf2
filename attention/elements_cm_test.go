package attention_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// The functions of num_elements_cm.comp.
const (
	elementsE4M3 = iota
	elementsFromBF16
	elementsPack
)

// elements runs one of them: in words in, out words out for each, which are two numbers.
func elements(t *testing.T, kernel string, mode uint32, src []uint32, in, out int) (got []uint16) {
	t.Helper()
	for _, w := range testkit.Words(t, kernel, src, in, out, mode) {
		got = append(got, uint16(w), uint16(w>>16))
	}
	return got
}

// TestElements compares the two element types of the cooperative-matrix kernels
// with their definitions: every E4M3 code with every scale, every bf16, and the
// rounding of weights.
func TestElements(t *testing.T) {
	for _, e := range []struct {
		kernel   string
		decode   func(uint16) float32
		lowest   int     // smallest scale byte that is not taken for zero
		highest  int     // largest that is not taken for a smaller one
		largest  float64 // magnitude
		smallest float64 // normal number
		off      float64 // how far a subnormal may be off
		flushed  bool    // or whether it may be 0
	}{
		{"num_elements_cm", numfmt.F16Decode, 105, 134, 65504, 0x1p-14, 0x1p-25, false},
		{"num_elements_cmb", numfmt.BF16Decode, 0, 246, math.MaxFloat32, 0x1p-126, 0x1p-133, true},
	} {
		check := func(t *testing.T, what string, bits uint16, want float64) {
			t.Helper()
			got := float64(e.decode(bits))
			ok := got == want
			switch {
			case math.IsNaN(want):
				ok = math.IsNaN(got)
			case math.Abs(want) < e.smallest:
				ok = math.Abs(got-want) <= e.off || e.flushed && got == 0
			}
			assert.True(t, ok, "%s: %g, want %g", what, got, want)
		}
		t.Run(e.kernel+"/e4m3", func(t *testing.T) {
			var src []uint32
			for scale := range uint32(256) {
				for code := uint32(0); code < 256; code += 4 {
					src = append(src, code|(code+1)<<8|(code+2)<<16|(code+3)<<24, scale)
				}
			}
			for i, bits := range elements(t, e.kernel, elementsE4M3, src, 2, 2) {
				scale, code := i/256, byte(i)
				want := float64(numfmt.E4M3Decode(code)) * math.Exp2(float64(min(scale, e.highest)-127))
				if scale < e.lowest && !math.IsNaN(want) {
					want = 0
				}
				check(t, "code "+strconv.Itoa(int(code))+" scale "+strconv.Itoa(scale), bits, want)
				if t.Failed() {
					break
				}
			}
		})
		t.Run(e.kernel+"/bf16", func(t *testing.T) {
			var src []uint32
			for x := uint32(0); x < 1<<16; x += 2 {
				src = append(src, x|(x+1)<<16)
			}
			for i, bits := range elements(t, e.kernel, elementsFromBF16, src, 1, 1) {
				want := float64(numfmt.BF16Decode(uint16(i)))
				if e.largest < math.MaxFloat32 && math.Abs(want) > e.largest {
					want = math.Copysign(e.largest, want)
				}
				check(t, "bf16 "+strconv.Itoa(i), bits, want)
				if t.Failed() {
					break
				}
			}
		})
		t.Run(e.kernel+"/weights", func(t *testing.T) {
			var src []uint32
			for u := math.Float32bits(0x1p-13); u < math.Float32bits(1024); u += 0x1357 {
				src = append(src, u)
			}
			src = src[:len(src)/4*4]
			for i, bits := range elements(t, e.kernel, elementsPack, src, 4, 2) {
				x := math.Float32frombits(src[i])
				want := numfmt.F16Encode(x)
				if e.kernel == "num_elements_cmb" {
					want = numfmt.BF16Encode(x)
				}
				// A device may convert to binary16 by cutting off; bf16 is our own arithmetic.
				if bits != want && !(e.kernel == "num_elements_cm" && bits == want-1) {
					t.Fatalf("%g: 0x%04x, want 0x%04x", x, bits, want)
				}
			}
		})
	}
}
