// six_bits makes eight scales and eight minimums of the 12 bytes in which six bits of each lie.
INLINE void six_bits(Weights *w, const uint8_t *b) {
	uint64_t s = u64_at(b + 4), t = u32_at(b + 12), high = s >> 6 & 0x0303030303030303;
	uint64_t scale = (s & 0x3F3F3F3F) | ((t & 0x0F0F0F0F) | (high & 0xFFFFFFFF) << 4) << 32;
	uint64_t least = (s >> 32 & 0x3F3F3F3F) | ((t >> 4 & 0x0F0F0F0F) | high >> 32 << 4) << 32;
	w->scale = mul(splat(half(b)), twins(scale));
	w->base = mul(splat(-half(b + 2)), twins(least));
}

INLINE void q4_k(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	six_bits(w, b);
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = field(twice(b + 16 + 32 * j), 0, 4, 15);
}
