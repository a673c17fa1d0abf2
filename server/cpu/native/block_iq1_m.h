INLINE void iq1_m_names(Names *names, const uint8_t *b) {
	places(names->rows, b, 4, b + 32, 2, 3, 4);
	highest(b + 32, names->minus);
}

// scales8 makes a byte each of eight scales: two numbers of 16 bits have four of three bits each.
INLINE uint64_t scales8(uint64_t s) {
	s = (s | s << 16) & 0x00000FFF00000FFF;
	s = (s | s << 10) & 0x003F003F003F003F;
	return (s | s << 5) & 0x0707070707070707;
}

// The grid is IQ1_S's, and so is what is done with it, but that each row has its sign.
INLINE void iq1_m(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	const uint64_t s = u64_at(b + 48), one = 0x0101010101010101;
	uint64_t d = s >> 12 & 0x000F000F000F000F;
	d |= d >> 12;
	const uint8_t h[2] = {(uint8_t)d, (uint8_t)(d >> 32)};
	w->scale = mul(splat(half(h) * 0.125f), numbers(scales8(s & 0xFFFFFFFF) << 1 | one, scales8(s >> 32) << 1 | one));
	zero_at(w, 9);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = plus8(rows8(grid, names->rows + 2 * j), 9 * one - (names->minus[j] & 2 * one));
}
