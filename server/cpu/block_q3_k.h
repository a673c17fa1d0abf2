INLINE void q3_k(float *to, const uint8_t *b, const uint8_t *grid) {
	float scale[16];
	uint32_t s[3], code[4]; // four bytes each
	memcpy(s, b + 96, 12);
	UNROLL for (int i = 0; i < 4; i++)
		code[i] = (s[i % 2] >> (4 * (i / 2)) & 0x0F0F0F0F) | (s[2] >> (2 * i) & 0x03030303) << 4;
	bytes all = quad((uint8_t *)&code[0], (uint8_t *)&code[1], (uint8_t *)&code[2], (uint8_t *)&code[3]);
	store(scale, mul(splat(half(b + 108)), whole(less(all, 32))));
	UNROLL for (int part = 0; part < 4; part++) {
		bytes q = bytes_at(b + 32 + 16 * part), h = bytes_at(b + part % 2 * 16);
		UNROLL for (int j = 0; j < 4; j++) {
			const int i = part / 2 * 8 + 2 * j + part % 2;
			bytes v = join(field(q, 2 * j, 3), lift(field(h, i / 2, 1), 2));
			store(to + 16 * i, mul(splat(scale[i]), whole(less(v, 4))));
		}
	}
}
