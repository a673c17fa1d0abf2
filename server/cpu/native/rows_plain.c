// For processors without AVX2: what the compiler makes of loops over 16 lanes.
#include "rows.h"
#include "blocks.h"

#define ROWS rows_plain
#define BLOCKS blocks_plain
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

typedef struct { uint8_t b[64]; } bytes;
#define BYTES(v) do { bytes o; for (int i = 0; i < 64; i++) o.b[i] = (uint8_t)(v); return o; } while (0)

OP vec mul(vec a, vec b) { LANES(a.f[i] * b.f[i]); }
OP vec sub(vec a, vec b) { LANES(a.f[i] - b.f[i]); }
OP vec fused(vec a, vec b, vec c) { LANES(__builtin_fmaf(a.f[i], b.f[i], c.f[i])); }
OP vec spread(vec v, int j) { LANES(v.f[4 * j + i / 4]); }
OP float half(const uint8_t *p) {
	uint32_t h = p[0] | (uint32_t)p[1] << 8, sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;
	if (e == 0) return from_bits(sign | 0x33800000) * (float)m; // m * 2^-24
	return from_bits(sign | (e == 31 ? 255 : e + 112) << 23 | m << 13);
}
OP vec numbers(uint64_t a, uint64_t b) { LANES((int8_t)((i < 8 ? a : b) >> (i % 8 * 8))); }
OP vec twins(uint64_t a) { LANES((int8_t)(a >> (i / 2 * 8))); }
OP vec halves(const uint8_t *p, int apart) { LANES(half(p + i / 2 * apart)); }

// Of 0 and 1 the power is subnormal.
static inline float power(uint32_t b) { return from_bits(b > 1 ? (b - 1) << 23 : (uint32_t)0x00200000 << b); }
OP vec powers(uint64_t a) { LANES(power(a >> (i / 2 * 8) & 255)); }

OP bytes two(const uint8_t *p, const uint8_t *q) { BYTES(i < 32 ? p[i] : q[i - 32]); }
OP bytes bytes_at(const uint8_t *p) { return two(p, p + 32); }
OP bytes twice(const uint8_t *p) { return two(p, p); }
OP bytes nibbles(const uint8_t *p, const uint8_t *q) { BYTES((i < 32 ? p : q)[i % 16] >> (i / 16 % 2 * 4) & 15); }
static inline uint16_t named(const uint64_t *rows, int i) { return (uint16_t)(rows[i / 4] >> (i % 4 * 16)); }
OP bytes rows8(const uint8_t *grid, const uint64_t *rows) { BYTES(grid[8 * named(rows, i / 8) + i % 8]); }
OP bytes rows4(const uint8_t *grid, const void *rows, int bits) {
	BYTES(grid[4 * (bits == 8 ? ((const uint8_t *)rows)[i / 4] : named(rows, i / 4)) + i % 4]);
}
OP void places(uint64_t *rows, const uint8_t *q, int apart, const uint8_t *h, int step, int bits, int next) {
	memset(rows, 0, 64);
	for (int i = 0; i < 32; i++) {
		uint64_t high = step == 2 ? u16_at(h + i / 4 * 2) >> i % 4 * next : h[i * next / 8] >> i * next % 8;
		rows[i / 4] |= (q[i / 4 * apart + i % 4] | (high & ((1u << bits) - 1)) << 8) << (i % 4 * 16);
	}
}
OP void sevens(const uint8_t *p, int apart, uint64_t *signs) {
	for (int i = 0; i < 32; i++) ((uint8_t *)signs)[i] = evened(u32_at(p + i / 4 * apart) >> i % 4 * 7 & 127);
}
OP void nines(uint64_t *rows, const uint8_t *p, uint64_t *signs) {
	for (int i = 0; i < 8; i++) rows[i] = u64_at(p + 8 * i) & 0x01FF01FF01FF01FF;
	for (int i = 0; i < 32; i++) ((uint8_t *)signs)[i] = evened(u16_at(p + 2 * i) >> 9);
}
OP void highest(const uint8_t *p, uint64_t *set) {
	for (int i = 0; i < 32; i++) ((uint8_t *)set)[i] = p[i / 2] >> i % 2 * 4 & 8 ? 255 : 0;
}
OP vec tops(const uint8_t *p, int apart) { LANES(u32_at(p + i / 2 * apart) >> 28); }
OP uint64_t odds(const uint8_t *p) {
	uint64_t v = 0;
	for (int i = 0; i < 8; i++) v |= (uint64_t)p[2 * i + 1] << (8 * i);
	return v;
}
OP vec four_bits(const uint8_t *p) { LANES(p[i / 2] >> (i % 2 * 4) & 15); }
OP bytes field(bytes b, int s, int t, int mask) { BYTES(b.b[i] >> (i < 32 ? s : t) & mask); }
OP bytes lift(bytes b, int shift) { BYTES(b.b[i] << shift); }
OP bytes join(bytes a, bytes b) { BYTES(a.b[i] | b.b[i]); }
OP bytes plus(bytes b, uint64_t v, int j) { BYTES(b.b[i] + (v >> (16 * j + i / 32 * 8) & 255)); }
OP bytes plus8(bytes b, uint64_t v) { BYTES(b.b[i] + (v >> i / 8 * 8 & 255)); }
OP bytes pick(const uint8_t *p, bytes b) { BYTES(p[b.b[i]]); }
OP bytes bits(uint64_t m, int n) { BYTES(m >> i & 1 ? n : 0); }
OP bytes signed_from(int n, bytes b, uint64_t m) { BYTES(m >> i & 1 ? n - b.b[i] : n + b.b[i]); }
OP vec dot(bytes b, const int8_t *x) {
	int sum[16] = {0};
	for (int i = 0; i < 64; i++) sum[i / 4] += b.b[i] * (128 * x[i] + x[64 + i]);
	LANES((float)sum[i]);
}

#include "rows_body.h"
#include "blocks_body.h"

int rows_level(void) {
#ifdef __x86_64__
	__builtin_cpu_init();
	int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
	if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")) return 2;
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

int blocks_has(int type) {
	switch (type) {
#define FORMAT(TYPE, NAME, VALUES, BYTES, NAMER) case TYPE: return 1;
	FORMATS(FORMAT)
#undef FORMAT
	}
	return 0;
}

void blocks(int level, int type, long k, const uint8_t *data, const uint8_t *grid, const Whole *x, long stride,
	const int32_t *take, long count, long first, long end, float *y, long ystride) {
	BlocksFunc *f = blocks_plain;
#ifdef __x86_64__
	if (level == 1) f = blocks_avx2;
	if (level == 2) f = blocks_avx512;
#endif
	f(type, k, data, grid, x, stride, take, count, first, end, y, ystride);
}
