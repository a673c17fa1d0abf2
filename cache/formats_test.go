package cache_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// modes of num_formats.comp
const (
	bf16Encode = iota
	bf16Decode
	bf16Pack2
	bf16Unpack2
	e4m3Encode
	e4m3Decode
	e4m3Decode4
	ue8m0Encode
	ue8m0Scale
	ue8m0Inverse
	e2m1Encode
	e2m1Decode
	bf16Pack2Exact
)

// format runs one function of shaders/lib over src, which has in words for each
// of the results' out words.
func format(t *testing.T, mode uint32, src []uint32, in, out int, eps, invMax float32) []uint32 {
	t.Helper()
	return testkit.Words(t, "num_formats", src, in, out, mode, math.Float32bits(eps), math.Float32bits(invMax))
}

// compare demands equal words, where two NaNs are equal.
func compare(t *testing.T, name string, src, got []uint32, want func(u uint32) uint32, float bool) {
	t.Helper()
	bad := 0
	for i, u := range src {
		w := want(u)
		if got[i] == w || float && isNaN(got[i]) && isNaN(w) && (got[i]^w)>>31 == 0 {
			continue
		}
		if bad++; bad <= 5 {
			t.Errorf("%s(0x%08x = %g): 0x%08x, want 0x%08x", name, u, math.Float32frombits(u), got[i], w)
		}
	}
	assert.LessOrEqual(t, bad, 5, "%s: of %d differ", name, len(src))
}

func isNaN(u uint32) bool { return u&0x7FFFFFFF > 0x7F800000 }

// edges are float32 values at which an encoder may go wrong: every bf16, the
// midpoint between each two of them and the neighbours of both; every midpoint of
// two E4M3 or two E2M1 values with its neighbours, at every scale that matters;
// the subnormals' ends; and random bits.
func edges(t *testing.T) []uint32 {
	var v []uint32
	for b := range uint32(1 << 16) {
		for _, d := range []uint32{0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF} {
			v = append(v, b<<16+d)
		}
	}
	add := func(x float64) {
		u := math.Float32bits(float32(x))
		for d := range uint32(5) {
			v = append(v, u+d-2, (u+d-2)^1<<31)
		}
	}
	for b := range byte(0x7E) {
		x, y := float64(numfmt.E4M3Decode(b)), float64(numfmt.E4M3Decode(b+1))
		add(x)
		add((x + y) / 2)
	}
	for b := range byte(7) {
		x, y := float64(numfmt.E2M1Decode(b)), float64(numfmt.E2M1Decode(b+1))
		add(x)
		add((x + y) / 2)
	}
	for _, x := range []float64{448, 464, 480, 512, 1e9, 6, 7, 8, 0x1p-126, 0x1p-127, 0x1p-149, 0x1p-9, 0x1p-10, 0x1p-6, math.MaxFloat32} {
		add(x)
	}
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 3))
	n := 1 << 22
	if testing.Short() {
		n = 1 << 16
	}
	for range n {
		v = append(v, rng.Uint32())
	}
	return v
}

func codes(n int) []uint32 {
	v := make([]uint32, n)
	for i := range v {
		v[i] = uint32(i)
	}
	return v
}

func f32(u uint32) float32 { return math.Float32frombits(u) }

// The formats in GLSL against those in Go: every code, both ways.
func TestNumberFormats(t *testing.T) {
	in := edges(t)
	t.Run("bf16", func(t *testing.T) {
		compare(t, "bf16_encode", in, format(t, bf16Encode, in, 1, 1, 0, 0), func(u uint32) uint32 { return uint32(numfmt.BF16Encode(f32(u))) }, false)
		all := codes(1 << 16)
		decoded := format(t, bf16Decode, all, 1, 1, 0, 0)
		compare(t, "bf16_decode", all, decoded, func(u uint32) uint32 { return u << 16 }, false)
		in := in[:len(in)&^1]
		packed := format(t, bf16Pack2, in, 2, 1, 0, 0)
		for i, w := range packed {
			want := uint32(numfmt.BF16Encode(f32(in[2*i]))) | uint32(numfmt.BF16Encode(f32(in[2*i+1])))<<16
			if w != want {
				t.Fatalf("bf16_pack2(0x%08x, 0x%08x): 0x%08x, want 0x%08x", in[2*i], in[2*i+1], w, want)
			}
		}
		// Unpacking and packing again, exactly, gives the word back.
		words := format(t, bf16Pack2Exact, format(t, bf16Unpack2, in, 1, 2, 0, 0), 2, 1, 0, 0)
		compare(t, "bf16_pack2_exact of bf16_unpack2", in, words, func(u uint32) uint32 { return u }, false)
	})
	t.Run("e4m3", func(t *testing.T) {
		compare(t, "e4m3_encode", in, format(t, e4m3Encode, in, 1, 1, 0, 0), func(u uint32) uint32 { return uint32(numfmt.E4M3Encode(f32(u))) }, false)
		all := codes(256)
		compare(t, "e4m3_decode", all, format(t, e4m3Decode, all, 1, 1, 0, 0), func(u uint32) uint32 {
			x := math.Float32bits(numfmt.E4M3Decode(byte(u)))
			return x&0x7FFFFFFF | u<<24&(1<<31) // numfmt leaves the sign of a NaN open
		}, true)
		words := make([]uint32, 256)
		for i := range words {
			b := uint32(i)
			words[i] = b | (b^0x80)<<8 | (b+37)&255<<16 | (255-b)<<24
		}
		got := format(t, e4m3Decode4, words, 1, 4, 0, 0)
		one := format(t, e4m3Decode, all, 1, 1, 0, 0)
		for i, w := range words {
			for j := range 4 {
				if want := one[w>>(8*j)&255]; got[4*i+j] != want {
					t.Fatalf("e4m3_decode4(0x%08x)[%d]: 0x%08x, want 0x%08x", w, j, got[4*i+j], want)
				}
			}
		}
	})
	t.Run("ue8m0", func(t *testing.T) {
		// Absolute maxima are non-negative and not NaN.
		var amax []uint32
		for _, u := range in {
			if u &= 0x7FFFFFFF; !isNaN(u) {
				amax = append(amax, u)
			}
		}
		for _, c := range []struct {
			name        string
			eps, invMax float32
		}{
			{"K cache", numfmt.KCacheEps, numfmt.E4M3InvMax},
			{"activations", numfmt.ActivationEps, numfmt.E4M3InvMax},
			{"MXFP4", numfmt.MXFP4Eps, numfmt.E2M1InvMax},
		} {
			compare(t, "ue8m0_encode for "+c.name, amax, format(t, ue8m0Encode, amax, 1, 1, c.eps, c.invMax),
				func(u uint32) uint32 { return uint32(numfmt.UE8M0Encode(f32(u), c.eps, c.invMax)) }, false)
		}
		all := codes(256)
		compare(t, "ue8m0_scale", all, format(t, ue8m0Scale, all, 1, 1, 0, 0), func(u uint32) uint32 {
			if u == 0 {
				return 0 // 2^-127 would be subnormal
			}
			return math.Float32bits(numfmt.UE8M0Scale(byte(u)))
		}, false)
		compare(t, "ue8m0_inverse", all, format(t, ue8m0Inverse, all, 1, 1, 0, 0), func(u uint32) uint32 {
			return math.Float32bits(numfmt.UE8M0Inverse(byte(u)))
		}, false)
	})
	t.Run("e2m1", func(t *testing.T) {
		compare(t, "e2m1_encode", in, format(t, e2m1Encode, in, 1, 1, 0, 0), func(u uint32) uint32 { return uint32(numfmt.E2M1Encode(f32(u))) }, false)
		all := codes(16)
		compare(t, "e2m1_decode", all, format(t, e2m1Decode, all, 1, 1, 0, 0), func(u uint32) uint32 { return math.Float32bits(numfmt.E2M1Decode(byte(u))) }, false)
	})
}
