package gguf

import "github.com/vkmla/vkmla/internal/numfmt"

// IQ1_M: 256 values in 56 bytes: u8 q[32]; u8 h[16]; u16 s[4]. Each q is a row of IQ1_S's grid;
// four bits of h, the lower ones of a byte first, are three more of the row, and the sign of what
// is added. Each s has four scales of three bits, one for 16 values, and four bits of the f16 d.
//
//	x = d * (2 scale + 1) * (grid +- 1/8)
func iq1M(dst []float32, b []byte) {
	d, q, h := numfmt.F16Decode(iq1MHalf(b)), b[:32], b[32:48]
	for i := range 32 {
		high, s := int(h[i/2]>>(4*(i%2))), le.Uint16(b[48+i/8*2:])
		scale, delta := d*float32(2*(s>>(3*(i/2%4))&7)+1), float32(0.125)
		if high&8 != 0 {
			delta = -delta
		}
		row := int(q[i]) | high&7<<8
		for j, v := range gridIQ1S[8*row:][:8] {
			dst[8*i+j] = scale * (float32(v) + delta)
		}
	}
}

// iq1MHalf is a block's d, of the highest bits of each s.
func iq1MHalf(b []byte) (d uint16) {
	for i := range 4 {
		d |= uint16(b[49+2*i]>>4) << (4 * i)
	}
	return d
}

func iq1MFinite(b []byte) bool { return finiteHalf(iq1MHalf(b)) }
