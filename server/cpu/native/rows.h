// Products of rows of a matrix with tokens. native.go has the arguments; product_ref.go of package
// cpu defines the order of the sums.
#include <stdint.h>
#include <string.h>

enum { BF16 = 1, F32, FP8, MXFP4 };

typedef struct {
	int format;
	long k;                // columns
	const uint8_t *data;   // of row 0
	const uint8_t *scales; // MXFP4: of row 0, k/32 bytes a row
	const float *blocks;   // FP8: ceil(k/128) a row of them
	long side;             // FP8: rows that share one
} Matrix;

typedef struct {
	const float *x;      // prepared activations
	long stride;         // numbers of a token, a multiple of 128
	const int32_t *take; // which tokens
	long count;
} Tokens;

// y[t*ystride + r - first] = row r . token take[t], for rows first to end-1.
typedef void RowsFunc(const Matrix *m, const Tokens *in, long first, long end, float *y, long ystride);

RowsFunc rows_avx512, rows_avx2, rows_plain;

// rows_level is what this processor can do: 2 AVX-512, 1 AVX2, 0 neither.
int rows_level(void);

// rows is the function of a level, with the members of its arguments one by one: Go may hand over
// pointers to its memory as arguments, not inside of structs.
void rows(int level, int format, long k, const uint8_t *data, const uint8_t *scales, const float *blocks, long side,
	const float *x, long stride, const int32_t *take, long count, long first, long end, float *y, long ystride);
