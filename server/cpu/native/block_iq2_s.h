INLINE void iq2_s_names(Names *names, const uint8_t *b) { places(names->rows, b + 2, 4, b + 66, 1, 2, 2); }

INLINE void iq2_s(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = mul(splat(half(b) * 0.25f), add(four_bits(b + 74), splat(0.5f)));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = signed_from(64, rows8(grid, names->rows + 2 * j), u64_at(b + 34 + 8 * j));
}
