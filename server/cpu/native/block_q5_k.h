INLINE void q5_k(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	six_bits(w, b);
	UNROLL for (int j = 0; j < 4; j++) {
		bytes high = lift(field(twice(b + 16), 2 * j, 2 * j + 1, 1), 4);
		w->code[j] = join(field(twice(b + 48 + 32 * j), 0, 4, 15), high);
	}
}
