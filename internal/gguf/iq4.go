package gguf

// iq4Values are the values of the codes of IQ4_NL and IQ4_XS.
var iq4Values = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// IQ4_NL: 32 values in 18 bytes: f16 d; u8 q[16], nibbles as Q4_0 has them.
//
//	x = d * value[nibble]
func iq4NL(dst []float32, b []byte) { iq4(dst, half(b), b[2:]) }

// IQ4_XS: 256 values in 136 bytes: f16 d; u16 h; u8 l[4]; u8 q[128]. Every 32 values have a scale
// of six bits, the low four in the nibbles of l, the high two in h, and 16 bytes of nibbles as
// IQ4_NL.
//
//	x = d * (scale - 32) * value[nibble]
func iq4XS(dst []float32, b []byte) {
	d, h, l, q := half(b), le.Uint16(b[2:]), b[4:], b[8:]
	for i := range 8 {
		scale := int(l[i/2]>>(4*(i%2))&15) | int(h>>(2*i)&3)<<4
		iq4(dst[32*i:], d*float32(scale-32), q[16*i:])
	}
}

// iq4 writes 32 values.
func iq4(dst []float32, d float32, q []byte) {
	for j := range 16 {
		dst[j] = d * iq4Values[q[j]&15]
		dst[j+16] = d * iq4Values[q[j]>>4]
	}
}
