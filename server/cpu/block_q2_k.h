INLINE void q2_k(float *to, const uint8_t *b, const uint8_t *grid) {
	float scale[16], least[16];
	bytes s = bytes_at(b);
	store(scale, mul(splat(half(b + 80)), whole(field(s, 0, 15))));
	store(least, mul(splat(half(b + 82)), whole(field(s, 4, 15))));
	UNROLL for (int part = 0; part < 4; part++) { // 16 bytes, with 4 times 16 values
		bytes q = bytes_at(b + 16 + 16 * part);
		UNROLL for (int j = 0; j < 4; j++) {
			const int i = part / 2 * 8 + 2 * j + part % 2;
			store(to + 16 * i, sub(mul(splat(scale[i]), whole(field(q, 2 * j, 3))), splat(least[i])));
		}
	}
}
