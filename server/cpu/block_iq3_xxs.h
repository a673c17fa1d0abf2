INLINE void iq3_xxs(Weights *w, const uint8_t *b, const uint8_t *grid) {
	uint64_t signs[4];
	vec scale = sevens(b + 66, 4, signs);
	w->scale = mul(splat(half(b) * 0.5f), add(scale, splat(0.5f)));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) {
		w->code[j] = signed_from(64, rows4(grid, b + 2 + 16 * j, 0), signs[j]);
	}
}
