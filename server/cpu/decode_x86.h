// What decode_body.h needs, for AVX2 and AVX-512.
typedef __m128i bytes;

OP float half(const uint8_t *p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p[0] | p[1] << 8))); }

OP bytes bytes_at(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
OP bytes pair(const uint8_t *p, const uint8_t *q) {
	return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)p), _mm_loadl_epi64((const __m128i *)q));
}
OP bytes four(const uint8_t *p) {
	int v;
	memcpy(&v, p, 4);
	return _mm_cvtsi32_si128(v);
}
OP bytes quad(const uint8_t *p, const uint8_t *q, const uint8_t *r, const uint8_t *s) {
	return _mm_unpacklo_epi64(_mm_unpacklo_epi32(four(p), four(q)), _mm_unpacklo_epi32(four(r), four(s)));
}

OP bytes field(bytes b, int shift, int mask) { return _mm_and_si128(_mm_srli_epi16(b, shift), _mm_set1_epi8((char)mask)); }
OP bytes lift(bytes b, int shift) { return _mm_slli_epi16(b, shift); }
OP bytes join(bytes a, bytes b) { return _mm_or_si128(a, b); }
OP bytes less(bytes b, int n) { return _mm_sub_epi8(b, _mm_set1_epi8((char)n)); }
OP bytes pick(const int8_t *p, bytes b) { return _mm_shuffle_epi8(bytes_at(p), b); }
