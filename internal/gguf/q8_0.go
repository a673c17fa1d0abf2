package gguf

// Q8_0: 32 values in 34 bytes: f16 d; i8 q[32].
//
//	x[j] = d * q[j]
func q8_0(dst []float32, b []byte) {
	d, q := half(b), b[2:]
	for j := range dst {
		dst[j] = d * float32(int8(q[j]))
	}
}
