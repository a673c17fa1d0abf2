#include "rows.h"
#include "blocks.h"
#ifdef __x86_64__
#include <immintrin.h>

#define ROWS rows_avx512
#define BLOCKS blocks_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
#define UNROLL _Pragma("GCC unroll 8")
#define TILE 4
#define OP static inline TARGET __attribute__((always_inline))

#include "blocks_x86.h"

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

typedef __m512i bytes;

OP vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
OP vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
OP vec fused(vec a, vec b, vec c) { return fma16(a, b, c); }
OP vec spread(vec v, int j) {
	const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
	return _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(4 * j)), v);
}

OP float half(const uint8_t *p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p[0] | p[1] << 8))); }
OP vec numbers(uint64_t a, uint64_t b) {
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_set_epi64x((long long)b, (long long)a)));
}
OP vec twins(uint64_t a) {
	__m128i b = _mm_cvtsi64_si128((long long)a);
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi8(b, b)));
}
OP vec halves(const uint8_t *p, int apart) {
	short h[8];
	UNROLL for (int i = 0; i < 8; i++) memcpy(&h[i], p + apart * i, 2);
	__m128i v = _mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]);
	return _mm512_cvtph_ps(_mm256_setr_m128i(_mm_unpacklo_epi16(v, v), _mm_unpackhi_epi16(v, v)));
}
// Of 0 and 1 the power is subnormal.
OP vec powers(uint64_t a) {
	__m128i b = _mm_cvtsi64_si128((long long)a);
	__m512i e = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(b, b));
	__m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
	__m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), _mm512_min_epi32(e, _mm512_set1_epi32(2)));
	return _mm512_castsi512_ps(_mm512_max_epi32(normal, small));
}

OP bytes bytes_at(const uint8_t *p) { return _mm512_loadu_si512(p); }
OP bytes twice(const uint8_t *p) { return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p)); }
OP bytes both(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
OP bytes two(const uint8_t *p, const uint8_t *q) {
	return both(_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)q));
}
OP bytes nibbles(const uint8_t *p, const uint8_t *q) {
	__m512i b = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
	b = _mm512_mask_broadcast_i32x4(b, 0xFF00, _mm_loadu_si128((const __m128i *)q));
	b = _mm512_srlv_epi64(b, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
	return _mm512_and_si512(b, _mm512_set1_epi8(15));
}
OP bytes rows8(const uint8_t *grid, const uint64_t *rows) {
	__m256i v[2];
	UNROLL for (int n = 0; n < 2; n++) v[n] = _mm256_setr_m128i(eights(grid, rows[n]), eights(grid, rows[n] >> 32));
	return both(v[0], v[1]);
}
OP bytes rows4(const uint8_t *grid, const void *rows, int bits) {
	const uint8_t *p = rows;
	__m128i v[4];
	UNROLL for (int n = 0; n < 4; n++) v[n] = fours(grid, p + bits / 2 * n, bits);
	return both(_mm256_setr_m128i(v[0], v[1]), _mm256_setr_m128i(v[2], v[3]));
}
OP vec four_bits(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(nibbles16(p))); }
OP vec tops(const uint8_t *p, int apart) {
	const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
	__m512i v = _mm512_permutexvar_epi32(twice, _mm512_castsi256_si512(quads(p, apart, -4)));
	return _mm512_cvtepi32_ps(_mm512_srli_epi32(v, 28));
}
OP bytes field(bytes b, int s, int t, int mask) {
	return _mm512_and_si512(_mm512_srlv_epi64(b, _mm512_setr_epi64(s, s, s, s, t, t, t, t)), _mm512_set1_epi8((char)mask));
}
OP bytes lift(bytes b, int shift) { return _mm512_slli_epi64(b, shift); }
OP bytes join(bytes a, bytes b) { return _mm512_or_si512(a, b); }
OP bytes plus(bytes b, uint64_t v, int j) {
	const __m512i of = _mm512_inserti64x4(_mm512_set1_epi8((char)(2 * j)), _mm256_set1_epi8((char)(2 * j + 1)), 1);
	return _mm512_add_epi8(b, _mm512_shuffle_epi8(_mm512_set1_epi64((long long)v), of));
}
OP bytes plus8(bytes b, uint64_t v) {
	const long long one = 0x0101010101010101;
	const __m512i of = _mm512_setr_epi64(0, one, 2 * one, 3 * one, 4 * one, 5 * one, 6 * one, 7 * one);
	return _mm512_add_epi8(b, _mm512_shuffle_epi8(_mm512_set1_epi64((long long)v), of));
}
OP bytes pick(const uint8_t *p, bytes b) {
	return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)), b);
}
OP bytes bits(uint64_t m, int n) { return _mm512_maskz_set1_epi8(m, (char)n); }
OP bytes signed_from(int n, bytes b, uint64_t m) {
	__m512i zero = _mm512_set1_epi8((char)n);
	return _mm512_mask_sub_epi8(_mm512_add_epi8(zero, b), m, zero, b);
}
OP vec dot(bytes b, const int8_t *x) {
	__m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), b, _mm512_loadu_si512(x));
	return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_slli_epi32(s, 7), b, _mm512_loadu_si512(x + 64)));
}

#include "rows_body.h"
#include "blocks_body.h"
#endif
