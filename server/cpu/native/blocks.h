// Products of GGUF's formats: the weights' codes, as they are stored, with activations that were
// rounded to whole numbers (whole.go of package cpu). A block's products are added exactly.
#include <stdint.h>

// FORMATS has a row for each format: its number in GGUF, its function, in a file of its own, the
// values and bytes of a block, and the function that names rows of its grid, if it has one.
#define FORMATS(FORMAT) \
	FORMAT(8, q8_0, 32, 34, unnamed) \
	FORMAT(2, q4_0, 32, 18, unnamed) \
	FORMAT(6, q5_0, 32, 22, unnamed) \
	FORMAT(20, iq4_nl, 32, 18, unnamed) \
	FORMAT(23, iq4_xs, 256, 136, unnamed) \
	FORMAT(39, mxfp4, 32, 17, unnamed) \
	FORMAT(10, q2_k, 256, 84, unnamed) \
	FORMAT(11, q3_k, 256, 110, unnamed) \
	FORMAT(12, q4_k, 256, 144, unnamed) \
	FORMAT(13, q5_k, 256, 176, unnamed) \
	FORMAT(14, q6_k, 256, 210, unnamed) \
	FORMAT(19, iq1_s, 256, 50, iq1_s_names) \
	FORMAT(29, iq1_m, 256, 56, iq1_m_names) \
	FORMAT(16, iq2_xxs, 256, 66, iq2_xxs_names) \
	FORMAT(17, iq2_xs, 256, 74, iq2_xs_names) \
	FORMAT(22, iq2_s, 256, 82, iq2_s_names) \
	FORMAT(18, iq3_xxs, 256, 98, iq3_xxs_names) \
	FORMAT(21, iq3_s, 256, 110, iq3_s_names)

// Whole is 256 activations: column 64j+i is scale * (128*x[j][0][i] + x[j][1][i]), sums[g] the sum
// of columns 16g to 16g+15 without the scale.
typedef struct {
	int8_t x[4][2][64];
	float sums[16], scale, unused[15];
} Whole;

// y[t*ystride + r - first] = row r . token take[t], for rows first to end-1 of a matrix of k
// columns. A token has stride blocks of 256 activations. grid are the values of a format whose
// codes stand for several.
typedef void BlocksFunc(int type, long k, const uint8_t *data, const uint8_t *grid, const Whole *x, long stride,
	const int32_t *take, long count, long first, long end, float *y, long ystride);

BlocksFunc blocks_avx512, blocks_avx2, blocks_plain;

// blocks_has says whether FORMATS has a type.
int blocks_has(int type);

// blocks is the function of a level.
void blocks(int level, int type, long k, const uint8_t *data, const uint8_t *grid, const Whole *x, long stride,
	const int32_t *take, long count, long first, long end, float *y, long ystride);

// Numbers of two, four and eight bytes, the lowest first.
static inline uint32_t u16_at(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static inline uint64_t u32_at(const uint8_t *p) { return u16_at(p) | (uint64_t)u16_at(p + 2) << 16; }
static inline uint64_t u64_at(const uint8_t *p) { return u32_at(p) | u32_at(p + 4) << 32; }

// evened adds an eighth sign to each byte of seven, which makes their number even.
static inline uint64_t evened(uint64_t signs) {
	uint64_t odd = signs ^ signs >> 4;
	odd ^= odd >> 2;
	odd ^= odd >> 1;
	return signs | (odd & 0x0101010101010101) << 7;
}
