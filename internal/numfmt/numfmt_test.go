package numfmt

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nearest finds the code whose value is closest to x by searching all of them
// in float64; between two equally close ones it takes the even code. It shares
// nothing with the encoders' bit tricks.
func nearest(x float64, codes int, value func(int) float64) int {
	best, dist := -1, math.Inf(1)
	for c := range codes {
		v := value(c)
		if math.IsNaN(v) {
			continue
		}
		d := math.Abs(x - v)
		if d < dist || d == dist && c%2 == 0 && best%2 == 1 {
			best, dist = c, d
		}
	}
	return best
}

// samples yields float32 values around every magnitude that a small format has:
// the format's own values, their midpoints, the neighbours of both, and noise.
func samples(values []float64, n int) []float32 {
	var out []float32
	add := func(v float64) {
		x := float32(v)
		out = append(out, x, math.Nextafter32(x, 1e30), math.Nextafter32(x, -1e30))
	}
	for i, v := range values {
		add(v)
		if i > 0 {
			add((v + values[i-1]) / 2)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		out = append(out, float32(math.Ldexp(r.Float64(), r.IntN(24)-14)))
	}
	return out
}

func TestBF16(t *testing.T) {
	for b := range 1 << 16 {
		x := BF16Decode(uint16(b))
		want := uint16(b)
		if x != x {
			want |= 0x40
		}
		if got := BF16Encode(x); got != want {
			t.Fatalf("code %#04x decodes to %g, encodes to %#04x", b, x, got)
		}
	}
	// Between two neighbouring codes: below, on and above the midpoint.
	for b := range 0x7F80 {
		lo := uint32(b) << 16
		for _, c := range []struct {
			u    uint32
			want int
		}{{lo + 0x7FFF, b}, {lo + 0x8000, b + b&1}, {lo + 0x8001, b + 1}} {
			for _, sign := range []uint32{0, 1 << 31} {
				want := uint16(c.want) | uint16(sign>>16)
				if got := BF16Encode(math.Float32frombits(c.u | sign)); got != want {
					t.Fatalf("bits %#08x: got %#04x, want %#04x", c.u|sign, got, want)
				}
			}
		}
	}
	assert.Equal(t, uint16(0xFFC0), BF16Encode(math.Float32frombits(0xFF800001)), "negative signalling NaN")
	assert.Equal(t, uint16(0x7F80), BF16Encode(math.MaxFloat32), "largest float32")
	enc := BF16EncodeSlice(nil, []float32{1, -2})
	dec := BF16DecodeSlice(nil, enc)
	require.Equal(t, float32(1), dec[0], "slices: %v", dec)
	assert.Equal(t, float32(-2), dec[1], "slices: %v", dec)
	assert.Equal(t, float32(1), BF16Round(1.00390625), "1 + 2^-8 is a tie and must round to 1")
}

func TestF16(t *testing.T) {
	for b := range 1 << 16 {
		x := F16Decode(uint16(b))
		want := uint16(b)
		if x != x {
			want |= 0x200
		}
		if got := F16Encode(x); got != want {
			t.Fatalf("code %#04x decodes to %g, encodes to %#04x", b, x, got)
		}
		e, m := b>>10&31, b&1023
		if e < 31 {
			v := math.Ldexp(float64(m)+1024, e-25)
			if e == 0 {
				v = math.Ldexp(float64(m), -24)
			}
			if b>>15 == 1 {
				v = -v
			}
			if float64(x) != v {
				t.Fatalf("code %#04x: got %g, want %g", b, x, v)
			}
		}
	}
	for b := range 0x7BFF { // midpoints of neighbours, both sides of each
		lo, hi := float64(F16Decode(uint16(b))), float64(F16Decode(uint16(b+1)))
		mid := float32((lo + hi) / 2)
		for _, c := range []struct {
			x    float32
			want int
		}{{math.Nextafter32(mid, 0), b}, {mid, b + b&1}, {math.Nextafter32(mid, 1e30), b + 1}} {
			if got := F16Encode(c.x); got != uint16(c.want) {
				t.Fatalf("%g: got %#04x, want %#04x", c.x, got, c.want)
			}
			if got := F16Encode(-c.x); got != uint16(c.want)|0x8000 {
				t.Fatalf("%g: got %#04x, want %#04x", -c.x, got, c.want|0x8000)
			}
		}
	}
	for x, want := range map[float32]uint16{65504: 0x7BFF, 65519.996: 0x7BFF, 65520: 0x7C00, 1e9: 0x7C00, 1e-30: 0} {
		assert.Equal(t, want, F16Encode(x), "%g", x)
	}
}

func e4m3Value(c int) float64 {
	e, m := c>>3&15, float64(c&7)
	switch {
	case c&0x7F == 0x7F:
		return math.NaN()
	case e == 0:
		return m * 0x1p-9
	}
	return math.Ldexp(1+m/8, e-7)
}

func TestE4M3(t *testing.T) {
	var values []float64
	for c := range 128 {
		v := e4m3Value(c)
		for _, b := range []byte{byte(c), byte(c) | 0x80} {
			got := float64(E4M3Decode(b))
			want := v
			if b&0x80 != 0 {
				want = -v
			}
			assert.False(t, math.Float64bits(got) != math.Float64bits(want) && v == v,
				"decode %#02x: got %g, want %g", b, got, want)
			assert.False(t, v != v && got == got, "decode %#02x: got %g, want NaN", b, got)
			if v == v && E4M3Encode(float32(got)) != b {
				t.Errorf("round trip of %#02x gives %#02x", b, E4M3Encode(float32(got)))
			}
		}
		if v == v {
			values = append(values, v)
		}
	}
	for _, x := range samples(values, 50000) {
		if x < 0 {
			continue
		}
		want := byte(nearest(float64(x), 127, e4m3Value))
		if got := E4M3Encode(x); got != want {
			t.Fatalf("%g: got %#02x, want %#02x", x, got, want)
		}
		if got := E4M3Encode(-x); got != want|0x80 {
			t.Fatalf("%g: got %#02x, want %#02x", -x, got, want|0x80)
		}
	}
	nan := float32(math.NaN())
	for _, c := range []struct {
		x    float32
		want byte
	}{
		{0, 0}, {float32(math.Copysign(0, -1)), 0x80}, {0x1p-10, 0}, {0x1p-10 * (1 + 0x1p-10), 1}, {1.5 * 0x1p-9, 2},
		{1, 0x38}, {1.0625, 0x38}, {1.1875, 0x3a}, {17, 0x58}, {18, 0x59}, {19, 0x5a}, {431, 0x7d}, {432, 0x7e},
		{447, 0x7e}, {448, 0x7e}, {1e9, 0x7e}, {nan, 0x7f}, {-nan, 0x7f}, {float32(math.Inf(1)), 0x7e}, {float32(math.Inf(-1)), 0xfe},
		{math.SmallestNonzeroFloat32, 0}, {-1e-40, 0x80},
	} {
		assert.Equal(t, c.want, E4M3Encode(c.x), "%g", c.x)
	}
}

func TestUE8M0(t *testing.T) {
	for _, c := range []struct {
		v    float32
		bits uint32
	}{{E4M3InvMax, 0x3B124925}, {E2M1InvMax, 0x3E2AAAAB}, {KCacheEps, 0x38D1B717}, {ActivationEps, 0x2EDBE6FF}, {MXFP4Eps, 0x01C00000}} {
		assert.Equal(t, c.bits, math.Float32bits(c.v), "constant %g has bits", c.v)
	}
	check := func(name string, eps, inv float32, m map[float32]byte) {
		for amax, want := range m {
			assert.Equal(t, want, UE8M0Encode(amax, eps, inv), "%s: amax %g", name, amax)
		}
	}
	check("E4M3", KCacheEps, E4M3InvMax, map[float32]byte{0: 105, 1e-4: 105, 0.5: 118, 1: 119, 1.75: 119, 2: 120, 3.5: 120,
		100: 125, 448: 127, 450: 128, 57344: 134})
	check("MXFP4", MXFP4Eps, E2M1InvMax, map[float32]byte{0: 1, 0.1: 122, 0.75: 124, 1: 125, 1.5: 125, 3: 126, 6: 127, 6.03125: 128, 12: 128})
	check("activation", ActivationEps, E4M3InvMax, map[float32]byte{0: 85})
	for s := range 256 {
		got, want := float64(UE8M0Scale(byte(s))), math.Ldexp(1, s-127)
		assert.False(t, got != want && s < 255, "scale %d: got %g, want %g", s, got, want)
		got, want = float64(UE8M0Inverse(byte(s))), math.Ldexp(1, 127-s)
		assert.False(t, got != want && s < 254, "inverse %d: got %g, want %g", s, got, want)
	}
	assert.True(t, math.IsInf(float64(UE8M0Scale(255)), 1) && UE8M0Inverse(254) == 0 && UE8M0Inverse(255) == 0,
		"edge bytes 254 and 255")
}

// TestUE8M0EveryBF16 holds the bit trick against the definition, the least
// power of two s with M*s >= amax, for every finite bf16 maximum.
func TestUE8M0EveryBF16(t *testing.T) {
	for _, f := range []struct {
		name        string
		eps, inv, m float32
	}{{"E4M3", KCacheEps, E4M3InvMax, 448}, {"E2M1", MXFP4Eps, E2M1InvMax, 6}, {"activation", ActivationEps, E4M3InvMax, 448}} {
		for b := range 0x7F80 {
			amax := BF16Decode(uint16(b))
			floor := float64(max(amax, f.eps))
			frac, e := math.Frexp(floor / float64(f.m))
			if frac == 0.5 {
				e--
			}
			if got := int(UE8M0Encode(amax, f.eps, f.inv)) - 127; got != e {
				t.Fatalf("%s: amax %g: got 2^%d, want 2^%d", f.name, amax, got, e)
			}
		}
	}
}

// TestDequantiseExact shows that a dequantised element needs no rounding: for
// every byte and scale that a cache can hold, the product is a bf16 value.
func TestDequantiseExact(t *testing.T) {
	for s := 85; s <= 246; s++ {
		for b := range 256 {
			v := E4M3Decode(byte(b)) * UE8M0Scale(byte(s))
			require.False(t, v == v && BF16Round(v) != v, "byte %#02x, scale %d: %g is not a bf16 value", b, s, v)
		}
	}
}

func e2m1Value(c int) float64 { return []float64{0, .5, 1, 1.5, 2, 3, 4, 6}[c] }

func TestE2M1(t *testing.T) {
	values := []float64{0, .5, 1, 1.5, 2, 3, 4, 6}
	for c := range 16 {
		v := E2M1Decode(byte(c))
		assert.Equal(t, byte(c), E2M1Encode(v), "round trip")
	}
	for _, x := range samples(values, 50000) {
		if x < 0 {
			continue
		}
		want := byte(nearest(float64(x), 8, e2m1Value))
		if got := E2M1Encode(x); got != want {
			t.Fatalf("%g: got %#x, want %#x", x, got, want)
		}
		if got := E2M1Encode(-x); got != want|8 {
			t.Fatalf("%g: got %#x, want %#x", -x, got, want|8)
		}
	}
	assert.Equal(t, byte(8), E2M1Encode(float32(math.Copysign(0, -1))), "negative zero")
	assert.Equal(t, byte(7), E2M1Encode(float32(math.NaN())), "NaN")
	for b := range 256 {
		e, o := E2M1Unpack(byte(b))
		assert.Equal(t, byte(b), E2M1Pack(e, o), "packing")
	}
}

// TestBF16Slices compares slices of all lengths and places with single numbers, NaN among them.
func TestBF16Slices(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	special := []uint32{0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF, 0x00008000,
		0x00018000, 0x3F808000, 0x3F818000}
	values, bits := make([]float32, 4096), make([]uint16, 4096)
	for i := range values {
		u := rng.Uint32()
		if i%7 == 0 {
			u = special[rng.IntN(len(special))]
		}
		values[i], bits[i] = math.Float32frombits(u), uint16(rng.Uint32())
	}
	for range 2000 {
		at := rng.IntN(4000)
		n := rng.IntN(96)
		coded, decoded := BF16EncodeSlice(make([]uint16, n+3)[rng.IntN(3):], values[at:at+n]), BF16DecodeSlice(nil, bits[at:at+n])
		require.Len(t, coded, n)
		require.Len(t, decoded, n)
		for i := range n {
			require.Equal(t, BF16Encode(values[at+i]), coded[i], "%x", math.Float32bits(values[at+i]))
			require.Equal(t, uint32(bits[at+i])<<16, math.Float32bits(decoded[i]))
		}
	}
}
