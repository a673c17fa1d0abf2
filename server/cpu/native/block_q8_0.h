INLINE void q8_0(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = halves(b, 34);
	zero_at(w, 128);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = plus(two(b + 68 * j + 2, b + 68 * j + 36), 0x8080808080808080, j);
}
