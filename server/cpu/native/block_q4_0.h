INLINE void q4_0(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = halves(b, 18);
	zero_at(w, 8);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = nibbles(b + 36 * j + 2, b + 36 * j + 20);
}
