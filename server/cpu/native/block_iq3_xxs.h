INLINE void iq3_xxs_names(Names *names, const uint8_t *b) { sevens(b + 66, 4, names->minus); }

INLINE void iq3_xxs(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = mul(splat(half(b) * 0.5f), add(tops(b + 66, 4), splat(0.5f)));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = signed_from(64, rows4(grid, b + 2 + 16 * j, 8), names->minus[j]);
}
