static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

INLINE void iq4(float *to, float d, const uint8_t *b) {
	bytes q = bytes_at(b);
	store(to, mul(splat(d), whole(pick(iq4_values, field(q, 0, 15)))));
	store(to + 16, mul(splat(d), whole(pick(iq4_values, field(q, 4, 15)))));
}

INLINE void iq4_nl(float *to, const uint8_t *b, const uint8_t *grid) { iq4(to, half(b), b + 2); }

INLINE void iq4_xs(float *to, const uint8_t *b, const uint8_t *grid) {
	uint32_t h = b[2] | b[3] << 8;
	UNROLL for (int i = 0; i < 8; i++) {
		int scale = (b[4 + i / 2] >> i % 2 * 4 & 15) | (h >> 2 * i & 3) << 4;
		iq4(to + 32 * i, half(b) * (float)(scale - 32), b + 8 + 16 * i);
	}
}
