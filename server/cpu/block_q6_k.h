INLINE void q6_k(float *to, const uint8_t *b, const uint8_t *grid) {
	float scale[16];
	store(scale, mul(splat(half(b + 208)), whole(bytes_at(b + 192))));
	UNROLL for (int part = 0; part < 2; part++) { // of 128 values
		UNROLL for (int i = 0; i < 8; i++) {
			const int group = i / 2; // of 32 values
			bytes low = bytes_at(b + 64 * part + 32 * (group % 2) + 16 * (i % 2));
			bytes high = bytes_at(b + 128 + 32 * part + 16 * (i % 2));
			bytes q = join(field(low, group / 2 * 4, 15), lift(field(high, 2 * group, 3), 4));
			store(to + 128 * part + 16 * i, mul(splat(scale[8 * part + i]), whole(less(q, 32))));
		}
	}
}
