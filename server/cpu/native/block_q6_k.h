INLINE void q6_k(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names) {
	w->scale = mul(splat(half(b + 208)), numbers(u64_at(b + 192), u64_at(b + 200)));
	zero_at(w, 32);
	UNROLL for (int j = 0; j < 4; j++) {
		const int part = j / 2, shift = j % 2 * 4; // parts of 128 values
		bytes high = lift(field(twice(b + 128 + 32 * part), shift, shift + 2, 3), 4);
		w->code[j] = join(field(bytes_at(b + 64 * part), shift, shift, 15), high);
	}
}
