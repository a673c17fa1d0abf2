INLINE void iq3_xxs(float *to, const uint8_t *b, const uint8_t *grid) {
	float d = half(b);
	UNROLL for (int i = 0; i < 8; i++) {
		uint32_t a = u32_at(b + 66 + 4 * i);
		vec scale = splat(d * (0.5f + (float)(a >> 28)) * 0.5f);
		UNROLL for (int g = 0; g < 4; g += 2) {
			const uint8_t *q = b + 2 + 8 * i + 2 * g;
			uint32_t signs = signs_of(a >> (7 * g)) | signs_of(a >> (7 * g + 7)) << 8;
			bytes v = quad(grid + 4 * q[0], grid + 4 * q[1], grid + 4 * q[2], grid + 4 * q[3]);
			store(to + 32 * i + 8 * g, mul(scale, whole(negate(v, signs))));
		}
	}
}
