package gguf

// Q2_K: 256 values in 84 bytes: u8 s[16]; u8 q[64]; f16 d; f16 m. Of each 128 values, 32 bytes of q
// hold the codes of two bits: of the first 32 in the lowest bits. Every 16 values have a byte of s,
// a scale in the low nibble and a minimum in the high one.
//
//	x = d * scale * code - m * minimum
func q2K(dst []float32, b []byte) {
	s, q, d, m := b[:16], b[16:80], half(b[80:]), half(b[82:])
	for i := range 16 {
		scale, least := d*float32(s[i]&15), m*float32(s[i]>>4)
		codes, shift := q[32*(i/8)+16*(i%2):], i%8/2*2
		for j := range 16 {
			x := float32(scale * float32(codes[j]>>shift&3)) // converted, so that nothing fuses
			dst[16*i+j] = x - least
		}
	}
}
