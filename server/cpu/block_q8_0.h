INLINE void q8_0(float *to, const uint8_t *b, const uint8_t *grid) {
	vec d = splat(half(b));
	store(to, mul(d, whole(bytes_at(b + 2))));
	store(to + 16, mul(d, whole(bytes_at(b + 18))));
}
