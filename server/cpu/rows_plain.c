// For processors without AVX2: what the compiler makes of loops over 16 lanes.
#include "rows.h"

#define ROWS rows_plain
#define DECODE decode_plain
#define TARGET
#define UNROLL 
#define TILE 1
#define OP static inline __attribute__((always_inline))
#define LANES(v) do { vec o; for (int i = 0; i < 16; i++) o.f[i] = (v); return o; } while (0)

typedef struct { float f[16]; } vec;
typedef struct { uint8_t b[64]; } codes;

static inline float from_bits(uint32_t u) {
	float f;
	memcpy(&f, &u, 4);
	return f;
}

OP vec splat(float f) { LANES(f); }
OP vec zero(void) { return splat(0); }
OP vec load(const float *p) { LANES(p[i]); }
OP vec fma16(vec a, vec b, vec c) { LANES(a.f[i] * b.f[i] + c.f[i]); }
OP vec add(vec a, vec b) { LANES(a.f[i] + b.f[i]); }

// total adds lanes 8 apart, then 4, 2 and 1.
OP float total(vec a) {
	for (int n = 8; n > 0; n /= 2)
		for (int i = 0; i < n; i++) a.f[i] += a.f[i + n];
	return a.f[0];
}

OP vec f32(const uint8_t *p) {
	vec o;
	memcpy(&o, p, 64);
	return o;
}
OP vec bf16(const uint8_t *p) { LANES(from_bits((uint32_t)p[2 * i] << 16 | (uint32_t)p[2 * i + 1] << 24)); }

static inline float e4m3_value(uint8_t b) {
	uint32_t a = b & 0x7F, sign = (uint32_t)(b & 0x80) << 24;
	if (a == 0x7F) return from_bits(0x7FC00000);
	if (a < 8) return from_bits(sign | 0x3B000000) * a; // a * 2^-9
	return from_bits(sign | ((a << 20) + 0x3C000000));
}
OP vec e4m3(const uint8_t *p) { LANES(e4m3_value(p[i])); }

OP codes codes_at(const uint8_t *p) {
	codes w;
	memcpy(&w, p, 64);
	return w;
}
OP vec e2m1(codes w, int j) {
	static const float values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
	LANES(values[w.b[4 * i + j / 2] >> (4 * (j % 2)) & 15]);
}

// The byte 0 means 2^-127, which has no exponent bits.
OP vec e8m0(const uint8_t *p) { LANES(from_bits(p[i / 4] ? (uint32_t)p[i / 4] << 23 : 0x00400000)); }

typedef struct { int8_t b[16]; } bytes;
#define BYTES(v) do { bytes o; for (int i = 0; i < 16; i++) o.b[i] = (int8_t)(v); return o; } while (0)

OP vec mul(vec a, vec b) { LANES(a.f[i] * b.f[i]); }
OP vec sub(vec a, vec b) { LANES(a.f[i] - b.f[i]); }
OP void store(float *p, vec a) { memcpy(p, &a, 64); }
OP float half(const uint8_t *p) {
	uint32_t h = p[0] | (uint32_t)p[1] << 8, sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;
	if (e == 0) return from_bits(sign | 0x33800000) * (float)m; // m * 2^-24
	return from_bits(sign | (e == 31 ? 255 : e + 112) << 23 | m << 13);
}
OP bytes bytes_at(const void *p) {
	bytes o;
	memcpy(&o, p, 16);
	return o;
}
OP bytes pair(const uint8_t *p, const uint8_t *q) { BYTES(i < 8 ? p[i] : q[i - 8]); }
OP bytes quad(const uint8_t *p, const uint8_t *q, const uint8_t *r, const uint8_t *s) {
	BYTES(i < 4 ? p[i] : i < 8 ? q[i - 4] : i < 12 ? r[i - 8] : s[i - 12]);
}
OP bytes field(bytes b, int shift, int mask) { BYTES((uint8_t)b.b[i] >> shift & mask); }
OP bytes lift(bytes b, int shift) { BYTES(b.b[i] << shift); }
OP bytes join(bytes a, bytes b) { BYTES(a.b[i] | b.b[i]); }
OP bytes less(bytes b, int n) { BYTES(b.b[i] - n); }
OP bytes pick(const int8_t *p, bytes b) { BYTES(p[b.b[i]]); }
OP bytes negate(bytes b, uint32_t signs) { BYTES(signs >> i & 1 ? -b.b[i] : b.b[i]); }
OP vec whole(bytes b) { LANES((float)b.b[i]); }

#include "rows_body.h"
#include "decode_body.h"

int rows_level(void) {
#ifdef __x86_64__
	__builtin_cpu_init();
	int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
	if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) return 2;
	return avx2;
#else
	return 0;
#endif
}

void rows(int level, int format, long k, const uint8_t *data, const uint8_t *scales, const float *blocks, long side,
	const float *x, long stride, const int32_t *take, long count, long first, long end, float *y, long ystride) {
	const Matrix m = {format, k, data, scales, blocks, side};
	const Tokens in = {x, stride, take, count};
	RowsFunc *f = rows_plain;
#ifdef __x86_64__
	if (level == 1) f = rows_avx2;
	if (level == 2) f = rows_avx512;
#endif
	f(&m, &in, first, end, y, ystride);
}

int decode(int level, int type, float *to, const uint8_t *from, long blocks, const uint8_t *grid) {
#ifdef __x86_64__
	if (level == 1) return decode_avx2(type, to, from, blocks, grid);
	if (level == 2) return decode_avx512(type, to, from, blocks, grid);
#endif
	return decode_plain(type, to, from, blocks, grid);
}
