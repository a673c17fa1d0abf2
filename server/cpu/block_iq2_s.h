INLINE void iq2_s(Weights *w, const uint8_t *b, const uint8_t *grid) {
	vec scale = numbers(bytes_of(u32_at(b + 74)), bytes_of(u32_at(b + 78)));
	w->scale = mul(splat(half(b) * 0.25f), add(scale, splat(0.5f)));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) {
		const uint32_t high = u16_at(b + 66 + 2 * j);
		uint32_t row[8];
		UNROLL for (int i = 0; i < 8; i++) row[i] = b[2 + 8 * j + i] | (high >> (2 * i) & 3) << 8;
		w->code[j] = signed_from(64, rows8(grid, row), u64_at(b + 34 + 8 * j));
	}
}
