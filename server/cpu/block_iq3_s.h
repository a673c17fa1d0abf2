INLINE void iq3_s(Weights *w, const uint8_t *b, const uint8_t *grid) {
	w->scale = mul(splat(half(b)), twins(bytes_of(u32_at(b + 106)) << 1 | 0x0101010101010101));
	zero_at(w, 64);
	UNROLL for (int j = 0; j < 4; j++) {
		bytes v = rows4(grid, b + 2 + 16 * j, u16_at(b + 66 + 2 * j));
		w->code[j] = signed_from(64, v, u64_at(b + 74 + 8 * j));
	}
}
