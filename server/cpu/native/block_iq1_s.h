INLINE void iq1_s_names(Names *names, const uint8_t *b) { places(names->rows, b + 2, 4, b + 34, 2, 3, 3); }

// The grid has 8 g + 1 of a value g: less 2 where h says so, d (2 s + 1) / 8 times this is
// d (2 s + 1) (g +- 1/8).
INLINE void iq1_s(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	const uint64_t h = odds(b + 34), one = 0x0101010101010101;
	w->scale = mul(splat(half(b) * 0.125f), twins((h >> 3 & 14 * one) | one));
	zero_at(w, 9);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = plus(rows8(grid, names->rows + 2 * j), 9 * one - (h >> 6 & 2 * one), j);
}
