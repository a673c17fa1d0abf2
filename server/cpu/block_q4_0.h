INLINE void q4_0(float *to, const uint8_t *b, const uint8_t *grid) {
	vec d = splat(half(b));
	bytes q = bytes_at(b + 2);
	store(to, mul(d, whole(less(field(q, 0, 15), 8))));
	store(to + 16, mul(d, whole(less(field(q, 4, 15), 8))));
}
