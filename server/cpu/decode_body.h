// The decoders, written once for all processors. A file that includes this has included
// rows_body.h; it defines DECODE, the function's name, and
//
//	half(p): the f16 at p
//	mul(a, b) sub(a, b) store(p, a): of vec
//	bytes: 16 whole numbers; bytes_at(p); pair(p, q): 8 at each; quad(p, q, r, s): 4 at each
//	field(b, shift, mask) = b >> shift & mask; lift(b, shift) of less than 16; join(a, b) = a | b
//	less(b, n) = b - n; pick(p, b) = p[b], of 16; negate(b, signs): bit i set means minus
//	whole(b): their values, signed
//
// A compiler may fuse sub with mul, and cgo takes no -ffp-contract. The values stay the same: the
// product is exact, as d has 11 bits, a scale at most 6 and a code 5.
#include "decode.h"
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
#include "block_iq2_xxs.h"
#include "block_iq2_xs.h"
#include "block_iq2_s.h"
#include "block_iq3_xxs.h"
#include "block_iq3_s.h"

TARGET int DECODE(int type, float *to, const uint8_t *from, long blocks, const uint8_t *grid) {
	switch (type) {
#define FORMAT(TYPE, NAME, VALUES, BYTES) \
	case TYPE: \
		for (; blocks > 0; blocks--, to += VALUES, from += BYTES) NAME(to, from, grid); \
		return 1;
	FORMATS(FORMAT)
#undef FORMAT
	}
	return 0;
}
