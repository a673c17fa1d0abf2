INLINE void q2_k(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	const uint64_t s = u64_at(b), t = u64_at(b + 8), low = 0x0F0F0F0F0F0F0F0F;
	w->scale = mul(splat(half(b + 80)), numbers(s & low, t & low));
	w->base = mul(splat(-half(b + 82)), numbers(s >> 4 & low, t >> 4 & low));
	UNROLL for (int j = 0; j < 4; j++) w->code[j] = field(twice(b + 16 + j / 2 * 32), j % 2 * 4, j % 2 * 4 + 2, 3);
}
