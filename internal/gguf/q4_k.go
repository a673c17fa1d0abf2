package gguf

// Q4_K: 256 values in 144 bytes: f16 d; f16 m; u8 s[12]; u8 q[128]. Every 32 values have a scale
// and a minimum of six bits (see sixBits); 32 bytes of q hold 32 values in the low nibbles and the
// next 32 in the high ones.
//
//	x = d * scale * nibble - m * minimum
func q4K(dst []float32, b []byte) {
	d, m, s, q := half(b), half(b[2:]), b[4:16], b[16:]
	for i := range 8 {
		code, minimum := sixBits(s, i)
		scale, least := d*float32(code), m*float32(minimum)
		codes, shift := q[32*(i/2):], 4*(i%2)
		for j := range 32 {
			x := float32(scale * float32(codes[j]>>shift&15)) // converted, so that nothing fuses
			dst[32*i+j] = x - least
		}
	}
}

// sixBits unpacks scale and minimum i of 8 in 12 bytes. Of the first four they lie in the low bits
// of s[i] and s[i+4]. Of the others the low four bits share s[i+4], and the high two lie above
// those of the first four.
func sixBits(s []byte, i int) (scale, minimum byte) {
	if i < 4 {
		return s[i] & 63, s[i+4] & 63
	}
	return s[i+4]&15 | s[i-4]>>6<<4, s[i+4]>>4 | s[i]>>6<<4
}
