package gguf

// Q5_0: 32 values in 22 bytes: f16 d; u32 h, bit j the fifth of value j; u8 q[16], the other four
// as Q4_0 has them.
//
//	x = d * (code - 16)
func q5_0(dst []float32, b []byte) {
	d, h, q := half(b), le.Uint32(b[2:]), b[6:]
	for j := range 16 {
		dst[j] = d * float32((int(q[j]&15)|int(h>>j&1)<<4)-16)
		dst[j+16] = d * float32((int(q[j]>>4)|int(h>>(j+16)&1)<<4)-16)
	}
}
