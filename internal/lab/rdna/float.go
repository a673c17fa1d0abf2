package rdna

import "math"

func asFloat(x uint32) float32 { return math.Float32frombits(x) }
func asBits(f float32) uint32  { return math.Float32bits(f) }

// flush makes a denormal of 32 bits zero, with its sign, as the mode register says.
func flush(x uint32) uint32 {
	if x&0x7f800000 == 0 {
		return x & 0x80000000
	}
	return x
}

func isNaN(x uint32) bool { return x&0x7fffffff > 0x7f800000 }

// fromHalf converts 16 bits, denormals too.
func fromHalf(h uint32) float32 {
	sign, e, m := h&0x8000<<16, h>>10&31, h&1023
	switch e {
	case 0:
		return asFloat(sign | asBits(float32(m)*(1.0/(1<<24))))
	case 31:
		return asFloat(sign | 0x7f800000 | m<<13)
	}
	return asFloat(sign | (e+112)<<23 | m<<13)
}

// toHalf rounds to nearest, ties to even; denormals are kept.
func toHalf(f float64) uint32 {
	sign := uint32(math.Float64bits(f)>>48) & 0x8000
	a := math.Abs(f)
	switch {
	case f != f:
		return sign | 0x7e00
	case a >= 65520:
		return sign | 0x7c00
	case a < 1.0/(1<<14):
		return sign | uint32(math.RoundToEven(a*(1<<24)))
	}
	bits := math.Float64bits(a)
	e, m := uint32(bits>>52)-1008, bits&(1<<52-1) // biased by 15
	h := e<<10 + uint32(m>>42)
	if rest := m & (1<<42 - 1); rest > 1<<41 || rest == 1<<41 && h&1 == 1 {
		h++
	}
	return sign | h
}

// fused is a*b + c with one rounding: the sum in float64 is rounded to odd, so that the second
// rounding sees what the first cut.
func fused(a, b, c float32) float32 {
	p, z := float64(a)*float64(b), float64(c)
	s := p + z
	if s == 0 || math.IsInf(s, 0) || s != s {
		return float32(s)
	}
	v := s - p
	cut := (p - (s - v)) + (z - v)
	if bits := math.Float64bits(s); cut != 0 && bits&1 == 0 {
		if cut > 0 == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}

// larger and smaller take a number before a NaN, and tell the zeros apart.
func larger(a, b uint32) uint32 {
	switch x, y := asFloat(a), asFloat(b); {
	case isNaN(a) || y > x:
		return b
	case isNaN(b) || x > y || a>>31 == 0:
		return a
	}
	return b
}

func smaller(a, b uint32) uint32 {
	switch x, y := asFloat(a), asFloat(b); {
	case isNaN(a) || y < x:
		return b
	case isNaN(b) || x < y || a>>31 == 1:
		return a
	}
	return b
}

// toInteger cuts off and keeps within a range; a NaN is 0.
func toInteger(f float32, least, most float64) float64 {
	if f != f {
		return 0
	}
	return max(least, min(most, math.Trunc(float64(f))))
}

// fromE4M3 converts 8 bits that have no infinities.
func fromE4M3(x uint32) float32 {
	e, m := int(x>>3&15), float64(x&7)
	f := math.Ldexp(8+m, e-10)
	switch {
	case e == 15 && m == 7:
		f = math.NaN()
	case e == 0:
		f = math.Ldexp(m, -9)
	}
	if x>>7&1 == 1 {
		f = -f
	}
	return float32(f)
}

// Classes of a float, as v_cmp_class numbers them.
func classOf(x uint32, exponent, mantissa uint) uint32 {
	e, m := x>>mantissa&(1<<exponent-1), x&(1<<mantissa-1)
	pair := func(negative, positive uint32) uint32 {
		if x>>(exponent+mantissa)&1 == 1 {
			return 1 << negative
		}
		return 1 << positive
	}
	switch most := uint32(1<<exponent - 1); {
	case e == most && m>>(mantissa-1) == 1:
		return 1 << 1 // quiet
	case e == most && m != 0:
		return 1 << 0 // signalling
	case e == most:
		return pair(2, 9)
	case e == 0 && m == 0:
		return pair(5, 6)
	case e == 0:
		return pair(4, 7)
	}
	return pair(3, 8)
}
