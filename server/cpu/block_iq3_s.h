INLINE void iq3_s(float *to, const uint8_t *b, const uint8_t *grid) {
	float d = half(b);
	for (int first = 0; first < 16; first += 8) {
		UNROLL for (int j = 0; j < 8; j++) {
			const int i = first + j;
			const uint8_t *q = b + 2 + 4 * i, *sign = b + 74 + 2 * i;
			uint32_t s = b[106 + i / 4] >> (i / 2 % 2 * 4) & 15, high = (uint32_t)b[66 + i / 2] << 8 >> (i % 2 * 4);
			uint32_t signs = sign[0] | (uint32_t)sign[1] << 8;
			bytes v = quad(grid + 4 * (q[0] | (high & 256)), grid + 4 * (q[1] | (high >> 1 & 256)),
				grid + 4 * (q[2] | (high >> 2 & 256)), grid + 4 * (q[3] | (high >> 3 & 256)));
			store(to + 16 * i, mul(splat(d * (float)(1 + 2 * s)), whole(negate(v, signs))));
		}
	}
}
