// u32_at is the number of four bytes, the lowest first.
INLINE uint32_t u32_at(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }

// signs_of makes eight signs of seven bits: the eighth makes their number even.
INLINE uint32_t signs_of(uint32_t code) { return (code & 127) | (uint32_t)__builtin_parity(code & 127) << 7; }

INLINE void iq2_xxs(float *to, const uint8_t *b, const uint8_t *grid) {
	float d = half(b);
	UNROLL for (int i = 0; i < 8; i++) {
		const uint8_t *q = b + 2 + 8 * i;
		uint32_t a = u32_at(q + 4);
		vec scale = splat(d * (0.5f + (float)(a >> 28)) * 0.25f);
		UNROLL for (int g = 0; g < 4; g += 2) {
			uint32_t signs = signs_of(a >> (7 * g)) | signs_of(a >> (7 * g + 7)) << 8;
			store(to + 32 * i + 8 * g, mul(scale, whole(negate(pair(grid + 8 * q[g], grid + 8 * q[g + 1]), signs))));
		}
	}
}
