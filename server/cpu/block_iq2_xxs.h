INLINE void iq2_xxs(Weights *w, const uint8_t *b, const uint8_t *grid) {
	uint64_t signs[4];
	vec scale = sevens(b + 6, 8, signs);
	w->scale = mul(splat(half(b) * 0.25f), add(scale, splat(0.5f)));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) {
		const uint8_t *p = b + 2 + 16 * j, *q = p + 8;
		const uint32_t row[8] = {p[0], p[1], p[2], p[3], q[0], q[1], q[2], q[3]};
		w->code[j] = signed_from(64, rows8(grid, row), signs[j]);
	}
}
