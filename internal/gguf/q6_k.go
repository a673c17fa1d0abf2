package gguf

// Q6_K: 256 values in 210 bytes: u8 l[128]; u8 h[64]; i8 s[16]; f16 d. Of each 128 values, 64 bytes
// of l hold the low four bits: of the first 64 in the low nibbles; 32 bytes of h hold the high two:
// of the first 32 in the lowest bits. Every 16 values have a scale.
//
//	x = d * scale * (code - 32)
func q6K(dst []float32, b []byte) {
	l, h, s, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for i := range 16 {
		scale := d * float32(int8(s[i]))
		part, group := i/8, i%8/2 // of 128 and of 32 values
		low, high := l[64*part+32*(group%2)+16*(i%2):], h[32*part+16*(i%2):]
		for j := range 16 {
			v := int(low[j]>>(4*(group/2))&15) | int(high[j]>>(2*group)&3)<<4
			dst[16*i+j] = scale * float32(v-32)
		}
	}
}
