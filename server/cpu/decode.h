// Formats of GGUF: their numbers are decoded to f32, in cache, and multiplied as such. The
// definition of each is its function in internal/gguf: the values are the same bit for bit.
#include <stdint.h>

// FORMATS has a row for each format that is decoded here: its number in GGUF, its function, in a
// file of its own, and the values and bytes of a block.
#define FORMATS(FORMAT) \
	FORMAT(8, q8_0, 32, 34) \
	FORMAT(2, q4_0, 32, 18) \
	FORMAT(6, q5_0, 32, 22) \
	FORMAT(20, iq4_nl, 32, 18) \
	FORMAT(23, iq4_xs, 256, 136) \
	FORMAT(39, mxfp4, 32, 17) \
	FORMAT(10, q2_k, 256, 84) \
	FORMAT(11, q3_k, 256, 110) \
	FORMAT(12, q4_k, 256, 144) \
	FORMAT(13, q5_k, 256, 176) \
	FORMAT(14, q6_k, 256, 210) \
	FORMAT(19, iq1_s, 256, 50) \
	FORMAT(16, iq2_xxs, 256, 66) \
	FORMAT(17, iq2_xs, 256, 74) \
	FORMAT(22, iq2_s, 256, 82) \
	FORMAT(18, iq3_xxs, 256, 98) \
	FORMAT(21, iq3_s, 256, 110)

// Decodes blocks that lie one after the other; 0 if the format has no row. grid are the values of
// a format whose codes stand for several.
typedef int DecodeFunc(int type, float *to, const uint8_t *from, long blocks, const uint8_t *grid);

DecodeFunc decode_avx512, decode_avx2, decode_plain;

// decode is the function of a level.
int decode(int level, int type, float *to, const uint8_t *from, long blocks, const uint8_t *grid);
