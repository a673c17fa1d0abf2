INLINE void iq2_xs(Weights *w, const uint8_t *b, const uint8_t *grid) {
	vec scale = numbers(bytes_of(u32_at(b + 66)), bytes_of(u32_at(b + 70)));
	w->scale = mul(splat(half(b) * 0.25f), add(scale, splat(0.5f)));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) {
		uint32_t row[8];
		uint64_t signs = 0;
		UNROLL for (int i = 0; i < 8; i++) {
			uint32_t q = u16_at(b + 2 + 16 * j + 2 * i);
			row[i] = q & 511, signs |= (uint64_t)(q >> 9) << (8 * i);
		}
		w->code[j] = signed_from(64, rows8(grid, row), evened(signs));
	}
}
