package gguf

// Q3_K: 256 values in 110 bytes: u8 h[32]; u8 q[64]; u8 s[12]; f16 d. The low two bits of a code
// lie as Q2_K's; the third of value j is bit j / 32 of h[j % 32]. Every 16 values have a scale of
// six bits: the low four in the nibbles of s[0] to s[7], the high two in s[8] to s[11].
//
//	x = d * (scale - 32) * (code - 4)
func q3K(dst []float32, b []byte) {
	h, q, s, d := b[:32], b[32:96], b[96:108], half(b[108:])
	for i := range 16 {
		code := s[i%8] >> (4 * (i / 8)) & 15
		code |= s[8+i%4] >> (2 * (i / 4)) & 3 << 4
		scale := d * float32(int(code)-32)
		low, high, shift := q[32*(i/8)+16*(i%2):], h[16*(i%2):], i%8/2*2
		for j := range 16 {
			v := int(low[j]>>shift&3) | int(high[j]>>(i/2)&1)<<2
			dst[16*i+j] = scale * float32(v-4)
		}
	}
}
