INLINE void q3_k(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	uint64_t s = u64_at(b + 96), h = u32_at(b + 104), code[2];
	UNROLL for (int i = 0; i < 2; i++) {
		uint64_t high = (h >> (4 * i) & 0x03030303) | (h >> (4 * i + 2) & 0x03030303) << 32;
		code[i] = (s >> (4 * i) & 0x0F0F0F0F0F0F0F0F) | high << 4;
	}
	w->scale = mul(splat(half(b + 108)), sub(numbers(code[0], code[1]), splat(32)));
	zero_at(w, 4);
	UNROLL for (int j = 0; j < 4; j++) {
		bytes low = field(twice(b + 32 + j / 2 * 32), j % 2 * 4, j % 2 * 4 + 2, 3);
		w->code[j] = join(low, lift(field(twice(b), 2 * j, 2 * j + 1, 1), 2));
	}
}
