INLINE void iq3_s_names(Names *names, const uint8_t *b) {
	UNROLL for (int i = 0; i < 2; i++) places(names->rows + 8 * i, b + 2 + 32 * i, 4, b + 66 + 4 * i, 1, 1, 1);
}

INLINE void iq3_s(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = mul(splat(half(b)), twins(bytes_of(u32_at(b + 106)) << 1 | 0x0101010101010101));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = signed_from(64, rows4(grid, names->rows + 4 * j, 16), u64_at(b + 74 + 8 * j));
}
