// six_bits makes eight scales, then eight minimums, of the 12 bytes in which six bits of each lie.
INLINE void six_bits(float *scale, float *least, const uint8_t *b) {
	uint32_t s[3];
	memcpy(s, b + 4, 12); // four bytes each
	uint32_t code[4] = {s[0] & 0x3F3F3F3F, (s[2] & 0x0F0F0F0F) | (s[0] >> 6 & 0x03030303) << 4,
		s[1] & 0x3F3F3F3F, (s[2] >> 4 & 0x0F0F0F0F) | (s[1] >> 6 & 0x03030303) << 4};
	vec v = whole(quad((uint8_t *)&code[0], (uint8_t *)&code[1], (uint8_t *)&code[2], (uint8_t *)&code[3]));
	store(scale, mul(splat(half(b)), v));
	store(least, mul(splat(half(b + 2)), v));
}

INLINE void q4_k(float *to, const uint8_t *b, const uint8_t *grid) {
	float scale[16], least[16];
	six_bits(scale, least, b);
	UNROLL for (int i = 0; i < 8; i++) {
		UNROLL for (int j = 0; j < 32; j += 16) {
			bytes q = field(bytes_at(b + 16 + i / 2 * 32 + j), i % 2 * 4, 15);
			store(to + 32 * i + j, sub(mul(splat(scale[i]), whole(q)), splat(least[8 + i])));
		}
	}
}
