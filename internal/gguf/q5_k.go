package gguf

// Q5_K: 256 values in 176 bytes: f16 d; f16 m; u8 s[12]; u8 h[32]; u8 q[128]. As Q4_K, with a fifth
// bit: of value j bit j / 32 of h[j % 32].
//
//	x = d * scale * code - m * minimum
func q5K(dst []float32, b []byte) {
	d, m, s, h, q := half(b), half(b[2:]), b[4:16], b[16:48], b[48:]
	for i := range 8 {
		code, minimum := sixBits(s, i)
		scale, least := d*float32(code), m*float32(minimum)
		codes, shift := q[32*(i/2):], 4*(i%2)
		for j := range 32 {
			v := codes[j]>>shift&15 | h[j]>>i&1<<4
			x := float32(scale * float32(v)) // converted, so that nothing fuses
			dst[32*i+j] = x - least
		}
	}
}
