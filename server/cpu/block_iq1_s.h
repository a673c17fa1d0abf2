// The grid has 8 g + 1 of a value g: less 2 where h says so, d (2 s + 1) / 8 times this is
// d (2 s + 1) (g +- 1/8).
INLINE void iq1_s(Weights *w, const uint8_t *b, const uint8_t *grid) {
	uint64_t scale = 0;
	UNROLL for (int i = 0; i < 8; i++) scale |= (uint64_t)((b[35 + 2 * i] >> 3 & 14) | 1) << (8 * i);
	w->scale = mul(splat(half(b) * 0.125f), twins(scale));
	zero_at(w, 9);
	UNROLL for (int j = 0; j < 4; j++) {
		const uint8_t *q = b + 2 + 8 * j;
		const uint32_t h = u16_at(b + 34 + 4 * j), g = u16_at(b + 36 + 4 * j);
		const uint32_t row[8] = {q[0] | (h & 7) << 8, q[1] | (h >> 3 & 7) << 8, q[2] | (h >> 6 & 7) << 8, q[3] | (h >> 9 & 7) << 8,
			q[4] | (g & 7) << 8, q[5] | (g >> 3 & 7) << 8, q[6] | (g >> 6 & 7) << 8, q[7] | (g >> 9 & 7) << 8};
		w->code[j] = plus(rows8(grid, row), 9 - (int)(h >> 15) * 2, 9 - (int)(g >> 15) * 2);
	}
}
