// The grid has 8 g + 1 of a value g: less 2 where h says so, d (2 s + 1) / 8 times this is
// d (2 s + 1) (g +- 1/8).
INLINE void iq1_s(float *to, const uint8_t *b, const uint8_t *grid) {
	float d = half(b);
	for (int i = 0; i < 8; i++) {
		const uint8_t *q = b + 2 + 4 * i;
		uint32_t h = b[34 + 2 * i] | (uint32_t)b[35 + 2 * i] << 8;
		vec scale = splat(d * (float)(2 * (h >> 12 & 7) + 1) * 0.125f);
		int minus = (int)(h >> 15) * 2;
		UNROLL for (int j = 0; j < 2; j++) {
			uint32_t high = h >> (6 * j);
			bytes v = pair(grid + 8 * (q[2 * j] | (high & 7) << 8), grid + 8 * (q[2 * j + 1] | (high >> 3 & 7) << 8));
			store(to + 32 * i + 16 * j, mul(scale, whole(less(v, minus))));
		}
	}
}
