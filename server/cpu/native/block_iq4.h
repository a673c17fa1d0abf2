// 128 more than the values of a code.
static const uint8_t iq4_codes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

INLINE void iq4_nl(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = halves(b, 18);
	zero_at(w, 128);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = pick(iq4_codes, nibbles(b + 36 * j + 2, b + 36 * j + 20));
}

INLINE void iq4_xs(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	uint64_t h = u16_at(b + 2); // two more bits of each scale, for a byte each
	h = (h | h << 24) & 0x000000FF000000FF;
	h = (h | h << 12) & 0x000F000F000F000F;
	h = (h | h << 6) & 0x0303030303030303;
	w->scale = mul(splat(half(b)), sub(twins(bytes_of(u32_at(b + 4)) | h << 4), splat(32)));
	zero_at(w, 128);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = pick(iq4_codes, nibbles(b + 32 * j + 8, b + 32 * j + 24));
}
