// E2M1 doubled, with one zero only, and 12 more.
static const uint8_t fp4_codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

INLINE void mxfp4(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	uint64_t e = 0;
	UNROLL for (int i = 0; i < 8; i++) e |= (uint64_t)b[17 * i] << (8 * i);
	w->scale = powers(e);
	zero_at(w, 12);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = pick(fp4_codes, nibbles(b + 34 * j + 1, b + 34 * j + 18));
}
