// The products, written once for all processors. A file that includes this defines ROWS, the
// function's name, TARGET, what the compiler may use, UNROLL in front of loops over the columns of
// a lane, and a vec of 16 numbers with
//
//	zero() splat(f) load(p) fma(a, b, c) = a*b + c, total(a) = the sum of its lanes
//	bf16(p) f32(p) e4m3(p): 16 stored numbers
//	codes: 64 bytes of MXFP4; codes_at(p), e2m1(codes, j) = in lane i column 8i+j
//	e8m0(p) = in lanes 4b to 4b+3 the scale p[b]
//
// Columns go by blocks of 128, in which each lane adds up 8 products. The sum is multiplied by
// the block's scale and added to the lane's. Blocks do not wait for each other.

// block adds up columns c to c+127 of a row for n tokens.
static inline TARGET __attribute__((always_inline)) void block(const int format, const int n, const uint8_t *row,
	const uint8_t *scales, const float *blocks, long c, const float *const *x, vec *sum) {
	vec part[4], scale = zero();
	codes w4;
	UNROLL for (int t = 0; t < n; t++) part[t] = zero();
	if (format == MXFP4) {
		w4 = codes_at(row + c / 2);
		scale = e8m0(scales + c / 32);
	} else if (format == FP8) {
		scale = splat(blocks[c / 128]);
	}
	UNROLL for (int j = 0; j < 8; j++) {
		vec w = format == MXFP4 ? e2m1(w4, j)
			: format == FP8 ? e4m3(row + c + 16 * j)
			: format == BF16 ? bf16(row + 2 * (c + 16 * j))
			: f32(row + 4 * (c + 16 * j));
		UNROLL for (int t = 0; t < n; t++) part[t] = fma16(w, load(x[t] + c + 16 * j), part[t]);
	}
	UNROLL for (int t = 0; t < n; t++)
		sum[t] = format == MXFP4 || format == FP8 ? fma16(scale, part[t], sum[t]) : add(part[t], sum[t]);
}

// row multiplies a row with n tokens, at most 4.
static inline TARGET __attribute__((always_inline)) void row_of(const int format, const int n, const Matrix *m, long r,
	const float *const *x, float *y, long ystride) {
	const long bits = format == MXFP4 ? 4 : format == FP8 ? 8 : format == BF16 ? 16 : 32;
	const uint8_t *row = m->data + r * (m->k * bits / 8);
	const uint8_t *scales = format == MXFP4 ? m->scales + r * (m->k / 32) : 0;
	const float *blocks = format == FP8 ? m->blocks + r / m->side * ((m->k + 127) / 128) : 0;
	vec sum[4];
	UNROLL for (int t = 0; t < n; t++) sum[t] = zero();
	long c = 0;
	for (; c + 128 <= m->k; c += 128) block(format, n, row, scales, blocks, c, x, sum);
	if (c < m->k) { // the rest of a row, with zeros behind it
		uint8_t rest[512] = {0}, rest_scales[4] = {0};
		memcpy(rest, row + c * bits / 8, (m->k - c) * bits / 8);
		const float *shifted[4];
		UNROLL for (int t = 0; t < n; t++) shifted[t] = x[t] + c;
		if (format == MXFP4) memcpy(rest_scales, scales + c / 32, (m->k - c) / 32);
		block(format, n, rest, rest_scales, format == FP8 ? blocks + c / 128 : 0, 0, shifted, sum);
	}
	UNROLL for (int t = 0; t < n; t++) y[t * ystride] = total(sum[t]);
}

static inline TARGET __attribute__((always_inline)) void rows_in(const int format, const Matrix *m, const Tokens *in,
	long first, long end, float *y, long ystride) {
	for (long r = first; r < end; r++) {
		long t = 0;
		for (; t < in->count; ) {
			const float *x[4];
			long n = in->count - t < 4 ? in->count - t : 4;
			for (long i = 0; i < n; i++) x[i] = in->x + in->take[t + i] * in->stride;
			float *to = y + t * ystride + r - first;
			switch (n) {
			case 1: row_of(format, 1, m, r, x, to, ystride); break;
			case 2: row_of(format, 2, m, r, x, to, ystride); break;
			case 3: row_of(format, 3, m, r, x, to, ystride); break;
			default: row_of(format, 4, m, r, x, to, ystride);
			}
			t += n;
		}
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
