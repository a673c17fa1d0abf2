// E2M1 doubled, with one zero only.
static const int8_t fp4_codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

INLINE void mxfp4(float *to, const uint8_t *b, const uint8_t *grid) {
	uint32_t bits = b[0] > 1 ? (uint32_t)(b[0] - 1) << 23 : (uint32_t)0x00200000 << b[0]; // 2^(b-128)
	float f;
	memcpy(&f, &bits, 4);
	vec d = splat(f);
	bytes q = bytes_at(b + 1);
	store(to, mul(d, whole(pick(fp4_codes, field(q, 0, 15)))));
	store(to + 16, mul(d, whole(pick(fp4_codes, field(q, 4, 15)))));
}
