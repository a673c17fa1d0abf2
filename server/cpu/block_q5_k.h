INLINE void q5_k(float *to, const uint8_t *b, const uint8_t *grid) {
	float scale[16], least[16];
	six_bits(scale, least, b);
	UNROLL for (int i = 0; i < 8; i++) {
		UNROLL for (int j = 0; j < 32; j += 16) {
			bytes q = field(bytes_at(b + 48 + i / 2 * 32 + j), i % 2 * 4, 15);
			q = join(q, lift(field(bytes_at(b + 16 + j), i, 1), 4));
			store(to + 32 * i + j, sub(mul(splat(scale[i]), whole(q)), splat(least[8 + i])));
		}
	}
}
