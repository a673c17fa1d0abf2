#include "rows.h"
#ifdef __x86_64__
#include <immintrin.h>

#define ROWS rows_avx2
#define DECODE decode_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define UNROLL _Pragma("GCC unroll 8")
#define TILE 2
#define OP static inline TARGET __attribute__((always_inline))

typedef struct { __m256 a, b; } vec; // lanes 0 to 7, and 8 to 15
typedef struct { __m256i a, b; } codes;

OP vec zero(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
OP vec splat(float f) { return (vec){_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
OP vec load(const float *p) { return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OP vec fma16(vec x, vec y, vec z) { return (vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
OP vec add(vec x, vec y) { return (vec){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }

// total adds lanes 8 apart, then 4, 2 and 1.
OP float total(vec x) {
	__m256 s = _mm256_add_ps(x.a, x.b);
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

OP __m256 bf16x8(const uint8_t *p) {
	__m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
	return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
OP vec bf16(const uint8_t *p) { return (vec){bf16x8(p), bf16x8(p + 16)}; }
OP vec f32(const uint8_t *p) { return load((const float *)p); }

// E4M3 is f16 with fewer bits of both kinds, but for the bias: times 2^8. Its NaN is made f16's.
OP vec e4m3(const uint8_t *p) {
	__m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
	__m256i h = _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16((short)0xBF80));
	__m256i most = _mm256_set1_epi16(0x3F80);
	__m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, most), most);
	h = _mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x7E00)));
	__m256 k = _mm256_set1_ps(256);
	return (vec){_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), k),
		_mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), k)};
}

OP codes codes_at(const uint8_t *p) {
	return (codes){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
}

// A permutation looks at the lowest three bits of a lane, which are a code without its sign.
OP __m256 e2m1x8(__m256i w, int j) {
	const __m256 values = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
	__m256i sign = _mm256_and_si256(_mm256_slli_epi32(w, 28 - 4 * j), _mm256_set1_epi32((int)0x80000000));
	__m256 v = _mm256_permutevar8x32_ps(values, _mm256_srli_epi32(w, 4 * j));
	return _mm256_xor_ps(v, _mm256_castsi256_ps(sign));
}
OP vec e2m1(codes w, int j) { return (vec){e2m1x8(w.a, j), e2m1x8(w.b, j)}; }

// The byte 0 means 2^-127, which has no exponent bits.
OP vec e8m0(const uint8_t *p) {
	int s;
	memcpy(&s, p, 4);
	__m128i b = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(s));
	__m256 f = _mm256_castps128_ps256(_mm_castsi128_ps(_mm_max_epi32(_mm_slli_epi32(b, 23), _mm_set1_epi32(0x00400000))));
	return (vec){_mm256_permutevar8x32_ps(f, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)),
		_mm256_permutevar8x32_ps(f, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3))};
}

#include "decode_x86.h"

OP vec mul(vec x, vec y) { return (vec){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
OP vec sub(vec x, vec y) { return (vec){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
OP void store(float *p, vec x) {
	_mm256_storeu_ps(p, x.a);
	_mm256_storeu_ps(p + 8, x.b);
}
OP vec whole(bytes b) {
	return (vec){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}
OP bytes negate(bytes b, uint32_t signs) {
	const bytes place = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), bit = _mm_set1_epi64x((long long)0x8040201008040201);
	bytes minus = _mm_cmpeq_epi8(_mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128((int)signs), place), bit), bit);
	return _mm_sub_epi8(_mm_xor_si128(b, minus), minus);
}

#include "rows_body.h"
#include "decode_body.h"
#endif
