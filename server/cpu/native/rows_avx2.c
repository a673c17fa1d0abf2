#include "rows.h"
#include "blocks.h"
#ifdef __x86_64__
#include <immintrin.h>

#define ROWS rows_avx2
#define BLOCKS blocks_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define UNROLL _Pragma("GCC unroll 8")
#define TILE 2
#define OP static inline TARGET __attribute__((always_inline))

#include "blocks_x86.h"

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

typedef struct { __m256i a, b; } bytes; // columns 0 to 31, and 32 to 63

OP vec mul(vec x, vec y) { return (vec){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
OP vec sub(vec x, vec y) { return (vec){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
OP vec fused(vec a, vec b, vec c) { return fma16(a, b, c); }
OP vec spread(vec v, int j) {
	const __m256 of = j < 2 ? v.a : v.b;
	const __m256i lanes = _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_set1_epi32(j % 2 * 4));
	return (vec){_mm256_permutevar8x32_ps(of, lanes), _mm256_permutevar8x32_ps(of, _mm256_add_epi32(lanes, _mm256_set1_epi32(2)))};
}

OP float half(const uint8_t *p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p[0] | p[1] << 8))); }
OP vec whole(__m128i b) {
	return (vec){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}
OP vec numbers(uint64_t a, uint64_t b) { return whole(_mm_set_epi64x((long long)b, (long long)a)); }
OP vec twins(uint64_t a) {
	__m128i b = _mm_cvtsi64_si128((long long)a);
	return whole(_mm_unpacklo_epi8(b, b));
}
OP vec halves(const uint8_t *p, int apart) {
	short h[8];
	UNROLL for (int i = 0; i < 8; i++) memcpy(&h[i], p + apart * i, 2);
	__m128i v = _mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]);
	return (vec){_mm256_cvtph_ps(_mm_unpacklo_epi16(v, v)), _mm256_cvtph_ps(_mm_unpackhi_epi16(v, v))};
}
// Of 0 and 1 the power is subnormal.
OP __m256 powers8(__m128i b) {
	__m256i e = _mm256_cvtepu8_epi32(b), normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
	__m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), _mm256_min_epi32(e, _mm256_set1_epi32(2)));
	return _mm256_castsi256_ps(_mm256_max_epi32(normal, small));
}
OP vec powers(uint64_t a) {
	__m128i b = _mm_cvtsi64_si128((long long)a);
	b = _mm_unpacklo_epi8(b, b);
	return (vec){powers8(b), powers8(_mm_srli_si128(b, 8))};
}

OP bytes two(const uint8_t *p, const uint8_t *q) {
	return (bytes){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)q)};
}
OP bytes bytes_at(const uint8_t *p) { return two(p, p + 32); }
OP bytes twice(const uint8_t *p) { return two(p, p); }
OP __m256i nibbles32(const uint8_t *p) {
	__m256i b = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
	return _mm256_and_si256(_mm256_srlv_epi64(b, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
}
OP bytes nibbles(const uint8_t *p, const uint8_t *q) { return (bytes){nibbles32(p), nibbles32(q)}; }
OP bytes rows8(const uint8_t *grid, const uint64_t *rows) {
	__m256i v[2];
	UNROLL for (int n = 0; n < 2; n++) v[n] = _mm256_setr_m128i(eights(grid, rows[n]), eights(grid, rows[n] >> 32));
	return (bytes){v[0], v[1]};
}
OP bytes rows4(const uint8_t *grid, const void *rows, int bits) {
	const uint8_t *p = rows;
	__m128i v[4];
	UNROLL for (int n = 0; n < 4; n++) v[n] = fours(grid, p + bits / 2 * n, bits);
	return (bytes){_mm256_setr_m128i(v[0], v[1]), _mm256_setr_m128i(v[2], v[3])};
}
OP vec four_bits(const uint8_t *p) { return whole(nibbles16(p)); }
OP vec tops(const uint8_t *p, int apart) {
	const __m256i v = _mm256_srli_epi32(quads(p, apart, -4), 28);
	return (vec){_mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3))),
		_mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)))};
}
OP bytes field(bytes b, int s, int t, int mask) {
	const __m256i m = _mm256_set1_epi8((char)mask);
	return (bytes){_mm256_and_si256(_mm256_srli_epi64(b.a, s), m), _mm256_and_si256(_mm256_srli_epi64(b.b, t), m)};
}
OP bytes lift(bytes b, int shift) { return (bytes){_mm256_slli_epi64(b.a, shift), _mm256_slli_epi64(b.b, shift)}; }
OP bytes join(bytes a, bytes b) { return (bytes){_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b)}; }
OP bytes plus(bytes b, uint64_t v, int j) {
	v >>= 16 * j;
	return (bytes){_mm256_add_epi8(b.a, _mm256_set1_epi8((char)v)), _mm256_add_epi8(b.b, _mm256_set1_epi8((char)(v >> 8)))};
}
OP bytes plus8(bytes b, uint64_t v) {
	const long long one = 0x0101010101010101;
	const __m256i of = _mm256_setr_epi64x(0, one, 2 * one, 3 * one), all = _mm256_set1_epi64x((long long)v);
	return (bytes){_mm256_add_epi8(b.a, _mm256_shuffle_epi8(all, of)),
		_mm256_add_epi8(b.b, _mm256_shuffle_epi8(all, _mm256_add_epi8(of, _mm256_set1_epi8(4))))};
}
OP bytes pick(const uint8_t *p, bytes b) {
	__m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
	return (bytes){_mm256_shuffle_epi8(table, b.a), _mm256_shuffle_epi8(table, b.b)};
}

// where has all bits of a byte whose bit is set.
OP __m256i where(uint32_t m) {
	const __m256i place = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
	const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
	__m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32((int)m), place);
	return _mm256_cmpeq_epi8(_mm256_and_si256(b, bit), bit);
}
OP bytes bits(uint64_t m, int n) {
	const __m256i v = _mm256_set1_epi8((char)n);
	return (bytes){_mm256_and_si256(where((uint32_t)m), v), _mm256_and_si256(where((uint32_t)(m >> 32)), v)};
}
OP __m256i signed32(int n, __m256i b, __m256i minus) {
	return _mm256_add_epi8(_mm256_set1_epi8((char)n), _mm256_sub_epi8(_mm256_xor_si256(b, minus), minus));
}
OP bytes signed_from(int n, bytes b, uint64_t m) {
	return (bytes){signed32(n, b.a, where((uint32_t)m)), signed32(n, b.b, where((uint32_t)(m >> 32)))};
}

// Activations are at most 64 here: a pair of products stays below 2^15.
OP __m256 dot32(__m256i b, const int8_t *x) {
	__m256i high = _mm256_maddubs_epi16(b, _mm256_loadu_si256((const __m256i *)x));
	__m256i low = _mm256_maddubs_epi16(b, _mm256_loadu_si256((const __m256i *)(x + 64)));
	high = _mm256_madd_epi16(high, _mm256_set1_epi16(128));
	return _mm256_cvtepi32_ps(_mm256_add_epi32(high, _mm256_madd_epi16(low, _mm256_set1_epi16(1))));
}
OP vec dot(bytes b, const int8_t *x) { return (vec){dot32(b.a, x), dot32(b.b, x + 32)}; }

#include "rows_body.h"
#include "blocks_body.h"
#endif
