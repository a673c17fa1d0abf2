// The products, written once for all processors. A file that includes this defines ROWS, the
// function's name, TARGET, what the compiler may use, UNROLL in front of loops over the columns of
// a lane, TILE, rows at a time, and a vec of 16 numbers with
//
//	zero() splat(f) load(p) fma16(a, b, c) = a*b + c, add(a, b), total(a) = the sum of its lanes
//	bf16(p) f32(p) e4m3(p): 16 stored numbers
//	codes: 64 bytes of MXFP4; codes_at(p), e2m1(codes, j) = in lane i column 8i+j
//	e8m0(p) = in lanes 4b to 4b+3 the scale p[b]
//
// Columns go by blocks of 128, in which each lane adds up 8 products. The sum is multiplied by
// the block's scale and added to the lane's. Blocks do not wait for each other. Rows do not touch
// each other's sums: those of a tile share the loads of activations, and have memory bring several
// streams at a time.

#define INLINE static inline TARGET __attribute__((always_inline))

// Row points to a row, and has the distance to the one that a later tile takes.
typedef struct {
	const uint8_t *data, *scales;
	const float *blocks;
	long ahead, ahead_scales;
} Row;

// block adds up columns c to c+127 of R rows for n tokens.
INLINE void block(const int format, const int R, const int n, const Row *row, long c, const float *const *x, vec (*sum)[4]) {
	vec part[TILE][4], scale[TILE];
	codes w4[TILE];
	UNROLL for (int i = 0; i < R; i++) {
		UNROLL for (int t = 0; t < n; t++) part[i][t] = zero();
		if (format == MXFP4) {
			w4[i] = codes_at(row[i].data + c / 2);
			scale[i] = e8m0(row[i].scales + c / 32);
			__builtin_prefetch(row[i].scales + c / 32 + row[i].ahead_scales, 0, 2);
		} else if (format == FP8) {
			scale[i] = splat(row[i].blocks[c / 128]);
		}
		const int bytes = format == MXFP4 ? 64 : format == FP8 ? 128 : format == BF16 ? 256 : 512;
		UNROLL for (int b = 0; b < bytes; b += 64) __builtin_prefetch(row[i].data + c / 128 * bytes + b + row[i].ahead, 0, 2);
	}
	UNROLL for (int j = 0; j < 8; j++) {
		vec in[4];
		UNROLL for (int t = 0; t < n; t++) in[t] = load(x[t] + c + 16 * j);
		UNROLL for (int i = 0; i < R; i++) {
			vec w = format == MXFP4 ? e2m1(w4[i], j)
				: format == FP8 ? e4m3(row[i].data + c + 16 * j)
				: format == BF16 ? bf16(row[i].data + 2 * (c + 16 * j))
				: f32(row[i].data + 4 * (c + 16 * j));
			UNROLL for (int t = 0; t < n; t++) part[i][t] = fma16(w, in[t], part[i][t]);
		}
	}
	UNROLL for (int i = 0; i < R; i++)
		UNROLL for (int t = 0; t < n; t++)
			sum[i][t] = format == MXFP4 || format == FP8 ? fma16(scale[i], part[i][t], sum[i][t]) : add(part[i][t], sum[i][t]);
}

// tile multiplies R rows from r on with n tokens, at most 4. far says that as many rows follow.
INLINE void tile(const int format, const int R, const int n, const Matrix *m, long r, int far,
	const float *const *x, float *y, long ystride) {
	const long bits = format == MXFP4 ? 4 : format == FP8 ? 8 : format == BF16 ? 16 : 32;
	const long width = m->k * bits / 8, scales = m->k / 32;
	Row row[TILE];
	vec sum[TILE][4];
	UNROLL for (int i = 0; i < R; i++) {
		row[i].data = m->data + (r + i) * width;
		row[i].scales = format == MXFP4 ? m->scales + (r + i) * scales : 0;
		row[i].blocks = format == FP8 ? m->blocks + (r + i) / m->side * ((m->k + 127) / 128) : 0;
		row[i].ahead = far ? R * width : 0;
		row[i].ahead_scales = far ? R * scales : 0;
		UNROLL for (int t = 0; t < n; t++) sum[i][t] = zero();
	}
	long c = 0;
	for (; c + 128 <= m->k; c += 128) block(format, R, n, row, c, x, sum);
	if (c < m->k) { // the rest of the rows, with zeros after it
		uint8_t rest[TILE][512] = {0}, rest_scales[TILE][4] = {0};
		const float *shifted[4];
		UNROLL for (int t = 0; t < n; t++) shifted[t] = x[t] + c;
		UNROLL for (int i = 0; i < R; i++) {
			memcpy(rest[i], row[i].data + c * bits / 8, (m->k - c) * bits / 8);
			if (format == MXFP4) memcpy(rest_scales[i], row[i].scales + c / 32, (m->k - c) / 32);
			row[i] = (Row){rest[i], rest_scales[i], format == FP8 ? row[i].blocks + c / 128 : 0, 0, 0};
		}
		block(format, R, n, row, 0, shifted, sum);
	}
	UNROLL for (int i = 0; i < R; i++)
		UNROLL for (int t = 0; t < n; t++) y[t * ystride + i] = total(sum[i][t]);
}

INLINE void tile_of(const int format, const int R, long n, const Matrix *m, long r, int far,
	const float *const *x, float *y, long ystride) {
	switch (n) {
	case 1: tile(format, R, 1, m, r, far, x, y, ystride); break;
	case 2: tile(format, R, 2, m, r, far, x, y, ystride); break;
	case 3: tile(format, R, 3, m, r, far, x, y, ystride); break;
	default: tile(format, R, 4, m, r, far, x, y, ystride);
	}
}

INLINE void rows_in(const int format, const Matrix *m, const Tokens *in, long first, long end, float *y, long ystride) {
	for (long t = 0; t < in->count; t += 4) {
		const float *x[4];
		long n = in->count - t < 4 ? in->count - t : 4, r = first;
		for (long i = 0; i < n; i++) x[i] = in->x + in->take[t + i] * in->stride;
		float *to = y + t * ystride - first;
		for (; r + TILE <= end; r += TILE) tile_of(format, TILE, n, m, r, r + 2 * TILE <= end, x, to + r, ystride);
		for (; r < end; r++) tile_of(format, 1, n, m, r, 0, x, to + r, ystride);
	}
}

TARGET void ROWS(const Matrix *m, const Tokens *in, long first, long end, float *y, long ystride) {
	switch (m->format) {
	case MXFP4: rows_in(MXFP4, m, in, first, end, y, ystride); break;
	case FP8: rows_in(FP8, m, in, first, end, y, ystride); break;
	case BF16: rows_in(BF16, m, in, first, end, y, ystride); break;
	default: rows_in(F32, m, in, first, end, y, ystride);
	}
}
