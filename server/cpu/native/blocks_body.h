// Products of codes, written once for all processors. A file that includes this has included
// rows_body.h; it defines BLOCKS, the function's name, and
//
//	half(p): the f16 at p
//	mul(a, b) sub(a, b) fused(a, b, c) = a*b + c, rounded once
//	spread(v, j) = in lane i v's 4j+i/4
//	numbers(a, b): 16 signed bytes as numbers; twins(a): 8 of them, each twice
//	halves(p, apart): 8 f16, each twice; powers(a): 2^(b-128) of 8 bytes b, each twice
//	bytes: 64 small numbers, columns in their order
//	bytes_at(p); two(p, q): 32 at each; twice(p): two(p, p)
//	nibbles(p, q): of the 16 bytes at p the low four bits, then the high ones, then of those at q
//	rows8(grid, rows): the eight rows of eight bytes that two numbers name; rows4(grid, rows, bits):
//	sixteen of four bytes that 8 or 16 bits name
//	places(rows, q, apart, h, step, bits, next) names 32 rows: four at a time by bytes, apart, and by
//	more bits from h on, one name's next bits after another's, of four in step 2 bytes or of all
//	highest(p, set): of 32 times four bits, the lower of a byte first, a byte each: 255 where the
//	highest is set, else 0
//	nines(rows, p, signs) does so by nine bits of 32 numbers; the other seven are signs, evened
//	sevens(p, apart, signs): so are four times seven bits of each of eight numbers of four bytes;
//	tops(p, apart): their highest four, each twice
//	odds(p): of 16 bytes those at odd places; four_bits(p): 16 numbers, the lower of a byte first
//	field(b, s, t, mask) = of the first 32 b >> s & mask, of the others b >> t & mask
//	lift(b, shift) that leaves no byte; join(a, b) = a | b; pick(p, b) = p[b], of 16
//	plus(b, v, j): byte 2j of v to the first 32, the next one to the others; plus8(b, v): byte i to
//	columns 8i to 8i+7
//	bits(m, n) = n where bit i is set, else 0
//	signed_from(n, b, m) = n - b where bit i is set, else n + b
//	dot(b, x) = in lane i the sum of products of four columns from 4i on; b counts as unsigned
//
// A sum of four is less than 2^24 and therefore exact in f32. Everything after it is fused in one
// order on all processors:
//
//	part = sum over j of dot(code[j], x[j]) * spread(scale, j), + base * sums
//	sum += part * the activations' scale
//
// and the lanes of sum are added as rows_body.h does.

// Weights are 256 columns of a row: column c is scale[c/16] * code + base[c/16].
typedef struct {
	vec scale, base;
	bytes code[4];
} Weights;

// zero_at makes n the code of 0.
INLINE void zero_at(Weights *w, float n) { w->base = mul(w->scale, splat(-n)); }

// Names are the rows of a grid that codes of 256 columns name, 16 bits each, and the signs: set
// where a column is negative.
typedef struct {
	uint64_t rows[16], minus[4];
} Names;

// bytes_of makes a byte each of eight nibbles, the lowest first.
INLINE uint64_t bytes_of(uint64_t x) {
	x = (x | x << 16) & 0x0000FFFF0000FFFF;
	x = (x | x << 8) & 0x00FF00FF00FF00FF;
	return (x | x << 4) & 0x0F0F0F0F0F0F0F0F;
}

#include "block_q8_0.h"
#include "block_q4_0.h"
#include "block_q5_0.h"
#include "block_iq4.h"
#include "block_mxfp4.h"
#include "block_q2_k.h"
#include "block_q3_k.h"
#include "block_q4_k.h"
#include "block_q5_k.h"
#include "block_q6_k.h"
#include "block_iq1_s.h"
#include "block_iq1_m.h"
#include "block_iq2_xxs.h"
#include "block_iq2_xs.h"
#include "block_iq2_s.h"
#include "block_iq3_xxs.h"
#include "block_iq3_s.h"

typedef void Format(Weights *w, const uint8_t *b, const uint8_t *grid, const Names *names);
typedef void Namer(Names *names, const uint8_t *b);

INLINE void unnamed(Names *names, const uint8_t *b) {}

INLINE void multiply(const Weights *w, const int n, const Whole *const *x, long at, vec *sum) {
	vec part[4];
	UNROLL for (int j = 0; j < 4; j++) {
		vec scale = spread(w->scale, j);
		UNROLL for (int t = 0; t < n; t++) {
			vec d = dot(w->code[j], x[t][at].x[j][0]);
			part[t] = j ? fused(d, scale, part[t]) : mul(d, scale);
		}
	}
	UNROLL for (int t = 0; t < n; t++) {
		part[t] = fused(w->base, load(x[t][at].sums), part[t]);
		sum[t] = fused(part[t], splat(x[t][at].scale), sum[t]);
	}
}

// Job is a product's arguments.
typedef struct {
	long k;
	const uint8_t *data, *grid;
	const Whole *x;
	long stride;
	const int32_t *take;
	long first, end;
	long ystride;
} Job;

// AHEAD is the bytes by which memory is asked before they are needed: the processor itself asks up
// to the next page only.
enum { AHEAD = 8192 };

// columns multiplies all rows with n tokens from t on. bytes are those of 256 columns; after a
// row's last ones zeros count as columns. Names are made 256 columns before the grid is read: the
// processor does both at once.
INLINE void columns(Format *format, Namer *namer, const long bytes, const int n, const Job *job, long t, float *y) {
	const Whole *x[4];
	Names names[2];
	int turn = 0;
	const uint8_t *last = job->data + job->end * (job->k * bytes / 256) - bytes;
	namer(&names[0], job->data + job->first * (job->k * bytes / 256));
	UNROLL for (int i = 0; i < n; i++) x[i] = job->x + job->take[t + i] * job->stride;
	for (long r = job->first; r < job->end; r++) {
		const uint8_t *row = job->data + r * (job->k * bytes / 256);
		uint8_t rest[8 * 34];
		Weights w;
		vec sum[4];
		UNROLL for (int i = 0; i < n; i++) sum[i] = zero();
		for (long at = 0; at * 256 < job->k; at++, row += bytes) {
			const long left = job->k - at * 256;
			UNROLL for (int c = 0; c < bytes; c += 64) __builtin_prefetch(row + c + AHEAD, 0, 2);
			if (left < 256) {
				memset(rest, 0, sizeof rest);
				memcpy(rest, row, left * bytes / 256);
				row = rest;
			}
			namer(&names[turn ^ 1], row < last ? row + bytes : row);
			format(&w, row, job->grid, &names[turn]);
			turn ^= 1;
			multiply(&w, n, x, at, sum);
		}
		UNROLL for (int i = 0; i < n; i++) y[(t + i) * job->ystride + r - job->first] = total(sum[i]);
	}
}

#define FORMAT(TYPE, NAME, VALUES, BYTES, NAMER) \
	static TARGET __attribute__((noinline)) void NAME##_rows(const Job *job, long count, float *y) { \
		long t = 0; \
		for (; t + 4 <= count; t += 4) columns(NAME, NAMER, 256 / VALUES * BYTES, 4, job, t, y); \
		for (; t < count; t++) columns(NAME, NAMER, 256 / VALUES * BYTES, 1, job, t, y); \
	}
FORMATS(FORMAT)
#undef FORMAT

TARGET void BLOCKS(int type, long k, const uint8_t *data, const uint8_t *grid, const Whole *x, long stride,
	const int32_t *take, long count, long first, long end, float *y, long ystride) {
	const Job job = {k, data, grid, x, stride, take, first, end, ystride};
	switch (type) {
#define FORMAT(TYPE, NAME, VALUES, BYTES, NAMER) case TYPE: NAME##_rows(&job, count, y); break;
	FORMATS(FORMAT)
#undef FORMAT
	}
}
