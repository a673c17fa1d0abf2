package gguf

// Q4_0: 32 values in 18 bytes: f16 d; u8 q[16], value j in the low nibble of q[j], value j + 16 in
// the high one.
//
//	x = d * (nibble - 8)
func q4_0(dst []float32, b []byte) {
	d, q := half(b), b[2:]
	for j := range 16 {
		dst[j] = d * float32(int(q[j]&15)-8)
		dst[j+16] = d * float32(int(q[j]>>4)-8)
	}
}
