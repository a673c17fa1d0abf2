INLINE void q5_0(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = halves(b, 22);
	zero_at(w, 16);
	UNROLL for (int j = 0; j < 4; j++) {
		const uint8_t *p = b + 44 * j, *q = p + 22;
		w->code[j] = join(nibbles(p + 6, q + 6), bits(u32_at(p + 2) | u32_at(q + 2) << 32, 16));
	}
}
