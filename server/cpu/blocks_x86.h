// Loads of a grid's rows, for AVX2 and AVX-512. A file that includes this defines OP and UNROLL.

// eights loads eight bytes at each of two addresses, fours four at each of four.
OP __m128i eights(const uint8_t *p, const uint8_t *q) {
	return _mm_castpd_si128(_mm_loadh_pd(_mm_load_sd((const double *)p), (const double *)q));
}
OP __m128i fours(const uint8_t *grid, const uint8_t *q, uint32_t high) {
	int v[4];
	UNROLL for (int n = 0; n < 4; n++) memcpy(&v[n], grid + 4 * (q[n] | (high >> n & 1) << 8), 4);
	return _mm_insert_epi32(_mm_insert_epi32(_mm_insert_epi32(_mm_cvtsi32_si128(v[0]), v[1], 1), v[2], 2), v[3], 3);
}
