INLINE void iq2_s(float *to, const uint8_t *b, const uint8_t *grid) {
	float d = half(b);
	for (int first = 0; first < 16; first += 8) {
		UNROLL for (int j = 0; j < 8; j++) {
			const int i = first + j;
			const uint8_t *q = b + 2 + 2 * i;
			uint32_t s = b[74 + i / 2] >> (i % 2 * 4) & 15, high = b[66 + i / 2] >> (i % 2 * 4);
			uint32_t signs = q[32] | (uint32_t)q[33] << 8;
			bytes v = pair(grid + 8 * (q[0] | (high & 3) << 8), grid + 8 * (q[1] | (high >> 2 & 3) << 8));
			store(to + 16 * i, mul(splat(d * (0.5f + (float)s) * 0.25f), whole(negate(v, signs))));
		}
	}
}
