static const uint8_t sixteens[16] = {16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16};

// fifth makes 16 of each bit that is set: minus 16 has bit 7, which 16 does not.
INLINE bytes fifth(uint32_t bits) { return field(negate(bytes_at(sixteens), bits & 0xFFFF), 3, 16); }

INLINE void q5_0(float *to, const uint8_t *b, const uint8_t *grid) {
	vec d = splat(half(b));
	uint32_t h;
	memcpy(&h, b + 2, 4);
	bytes q = bytes_at(b + 6);
	store(to, mul(d, whole(less(join(field(q, 0, 15), fifth(h)), 16))));
	store(to + 16, mul(d, whole(less(join(field(q, 4, 15), fifth(h >> 16)), 16))));
}
