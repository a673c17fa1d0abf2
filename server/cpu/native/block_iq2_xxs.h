INLINE void iq2_xxs_names(Names *names, const uint8_t *b) {
	places(names->rows, b + 2, 8, b, 1, 0, 0);
	sevens(b + 6, 8, names->minus);
}

INLINE void iq2_xxs(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = mul(splat(half(b) * 0.25f), add(tops(b + 6, 8), splat(0.5f)));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = signed_from(64, rows8(grid, names->rows + 2 * j), names->minus[j]);
}
