package numfmt

import "math"

// E4M3Max is the largest finite E4M3 value.
const E4M3Max = 448

// E4M3Encode rounds x to the nearest E4M3 value, ties to the even code, and
// saturates at +-448. The format is the one without infinities: NaN is 0x7F,
// whatever the sign of the input, and a negative zero keeps its sign.
//
// Source: "FP8 Formats for Deep Learning", Micikevicius et al., section 3.
func E4M3Encode(x float32) byte {
	u := math.Float32bits(x)
	sign := byte(u >> 24 & 0x80)
	a := u & 0x7FFFFFFF
	if a > 0x7F800000 {
		return 0x7F
	}
	if a < 0x3C800000 { // below 2^-6: a multiple of 2^-9, the product is exact
		return sign | byte(math.RoundToEven(float64(math.Float32frombits(a))*(1<<9)))
	}
	code := (a+0x7FFFF+a>>20&1)>>20 - 960
	return sign | byte(min(code, 0x7E))
}

// E4M3Decode returns the value of an E4M3 byte; 0x7F and 0xFF are NaN.
func E4M3Decode(b byte) float32 { return e4m3Values[b] }

var e4m3Values = func() (t [256]float32) {
	for b := range t {
		e, m := uint32(b>>3&15), uint32(b&7)
		v := math.Float32frombits((e+120)<<23 | m<<20)
		switch {
		case b&0x7F == 0x7F:
			v = math.Float32frombits(0x7FC00000)
		case e == 0:
			v = float32(m) / (1 << 9)
		}
		t[b] = math.Float32frombits(math.Float32bits(v) | uint32(b&0x80)<<24)
	}
	return t
}()
