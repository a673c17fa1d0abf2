INLINE void iq2_xs(float *to, const uint8_t *b, const uint8_t *grid) {
	float d = half(b);
	for (int first = 0; first < 16; first += 8) {
		UNROLL for (int j = 0; j < 8; j++) {
			const int i = first + j;
			uint32_t q = u32_at(b + 2 + 4 * i), s = b[66 + i / 2] >> (i % 2 * 4) & 15;
			vec scale = splat(d * (0.5f + (float)s) * 0.25f);
			uint32_t signs = signs_of(q >> 9) | signs_of(q >> 25) << 8;
			store(to + 16 * i, mul(scale, whole(negate(pair(grid + 8 * (q & 511), grid + 8 * (q >> 16 & 511)), signs))));
		}
	}
}
