#include "rows.h"
#ifdef __x86_64__
#include <immintrin.h>

#define ROWS rows_avx512
#define DECODE decode_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define UNROLL _Pragma("GCC unroll 8")
#define TILE 4
#define OP static inline TARGET __attribute__((always_inline))

typedef __m512 vec;
typedef __m512i codes;

OP vec zero(void) { return _mm512_setzero_ps(); }
OP vec splat(float f) { return _mm512_set1_ps(f); }
OP vec load(const float *p) { return _mm512_loadu_ps(p); }
OP vec fma16(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
OP vec add(vec a, vec b) { return _mm512_add_ps(a, b); }

// total adds lanes 8 apart, then 4, 2 and 1.
OP float total(vec a) {
	__m256 s = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

OP vec f32(const uint8_t *p) { return _mm512_loadu_ps(p); }
OP vec bf16(const uint8_t *p) {
	__m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
	return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

// E4M3 is f16 with fewer bits of both kinds, but for the bias: times 2^8. Its NaN is made f16's.
OP vec e4m3(const uint8_t *p) {
	__m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
	__m256i h = _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16((short)0xBF80));
	__m256i most = _mm256_set1_epi16(0x3F80);
	__m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, most), most);
	h = _mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x7E00)));
	return _mm512_mul_ps(_mm512_cvtph_ps(h), splat(256));
}

OP codes codes_at(const uint8_t *p) { return _mm512_loadu_si512(p); }

// A permutation looks at the lowest four bits of a lane, which are a code.
OP vec e2m1(codes w, int j) {
	const vec values = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6);
	return _mm512_permutexvar_ps(_mm512_srli_epi32(w, 4 * j), values);
}

// The byte 0 means 2^-127, which has no exponent bits.
OP vec e8m0(const uint8_t *p) {
	int s;
	memcpy(&s, p, 4);
	__m512i b = _mm512_shuffle_epi8(_mm512_set1_epi32(s), _mm512_set_epi32(
		-253, -253, -253, -253, -254, -254, -254, -254, -255, -255, -255, -255, -256, -256, -256, -256));
	return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(b, 23), _mm512_set1_epi32(0x00400000)));
}

#include "decode_x86.h"

OP vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
OP vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
OP void store(float *p, vec a) { _mm512_storeu_ps(p, a); }
OP vec whole(bytes b) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)); }
OP bytes negate(bytes b, uint32_t signs) { return _mm_mask_sub_epi8(b, (__mmask16)signs, _mm_setzero_si128(), b); }

#include "rows_body.h"
#include "decode_body.h"
#endif
