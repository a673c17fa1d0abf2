INLINE void iq2_xs_names(Names *names, const uint8_t *b) { nines(names->rows, b + 2, names->minus); }

INLINE void iq2_xs(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = mul(splat(half(b) * 0.25f), add(four_bits(b + 66), splat(0.5f)));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = signed_from(64, rows8(grid, names->rows + 2 * j), names->minus[j]);
}
