// Operands of cooperative matrices from memory to registers: a quad of weights, or eight numbers of
// x, become components of a lane. The order of k in a product is free as long as both operands have
// the same one, so it is the one that decoding yields.
//
// Included where CM_A and CM_B are the types of operands, with LINEAR_HALVES.
#ifndef LIB_LINEAR_LANES_GLSL
#define LIB_LINEAR_LANES_GLSL
#include "linear_cm.glsl"

// element: a pair of binary16 numbers of few bits as elements.
uint element(uint halves) {
#ifdef CM_BF16
    const vec2 v = unpackFloat2x16(halves);
    return highs(floatBitsToUint(v.x), floatBitsToUint(v.y)); // the lower halves are 0
#else
    return halves;
#endif
}

// largest_bits: the largest scale of `numbers` numbers of a row from k, a multiple of them, on.
// Products of SMALL_BLOCKS are kept relative to that of their step.
uint largest_bits(uint row, uint k, uint numbers) {
    const uint blocks = (numbers + SCALE_BLOCK - 1u) / SCALE_BLOCK + (numbers % SCALE_BLOCK == 0u ? 0u : 1u);
    uint most = 0u;
    [[unroll]] for (uint b = 0u; b < blocks; b++)
        most = max(most, w_block_bits(row, min(k + min(b * SCALE_BLOCK, numbers - 1u), pc.k - 1u)));
    return most;
}

// relative_scale: a block's scale relative to the largest. f16 elements hold codes times it exactly
// down to 2^-22, and then in steps of 2^-24.
float relative_scale(uint bits, uint largest) {
    return uintBitsToFloat(uint(clamp(int(bits >> 23) - int(largest >> 23), -126, 0) + 127 + 15) << 23);
}

// scaled_element: element of codes times a power of two.
uint scaled_element(uint halves, float scale) {
#ifdef CM_BF16
    const vec2 v = vec2(unpackFloat2x16(halves)) * scale;
    return highs(floatBitsToUint(v.x), floatBitsToUint(v.y));
#else
    return packFloat2x16(unpackFloat2x16(halves) * f16vec2(float16_t(scale)));
#endif
}

#define FORMAT_PAIRS
#define FORMAT_ORDER
#include "format_list.glsl"
#undef FORMAT_PAIRS
#undef FORMAT_ORDER

#define CASE_PAIR_UNIT(upper, lower) CODEC == CODEC_##upper ? upper##_PAIR_UNIT :
const float LANES_UNSCALE = CODECS(CASE_PAIR_UNIT) 1.0;

// in_order: eight elements of x, two a word, in the order of weight_pairs.
uvec4 in_order(uvec4 v) {
#define CASE_ORDER(upper, lower) if (CODEC == CODEC_##upper) return lower##_order(v);
    CODECS(CASE_ORDER)
    return v;
}

// weight_pairs: the elements of word j of a quad, two a word, in the format's order. relative is of
// SMALL_BLOCKS.
void weight_pairs(uint w, uint j, uvec2 beside, float relative, out uint o[4]) {
    const uint part = j * (WEIGHT_QUAD / 4u) / SCALE_BLOCK;
#define CASE_PAIRS(upper, lower) if (CODEC == CODEC_##upper) lower##_pairs(w, beside, part, relative, o);
    CODECS(CASE_PAIRS)
}

#ifdef CM_BF16
#define LANES_LOW(w) uintBitsToBFloat16EXT(uint16_t(w))
#define LANES_HIGH(w) uintBitsToBFloat16EXT(uint16_t((w) >> 16))
#else
#define LANES_LOW(w) unpackFloat2x16(w).x
#define LANES_HIGH(w) unpackFloat2x16(w).y
#endif

// At which k a component of a fragment stands does not matter as long as it is the same in both
// operands.
void fill_a(inout CM_A a, uint at, uint w) {
    a[at] = LANES_LOW(w);
    a[at + 1u] = LANES_HIGH(w);
}

void fill_b(inout CM_B b, uint at, uint w) {
    b[at] = LANES_LOW(w);
    b[at + 1u] = LANES_HIGH(w);
}

void fill_a1(inout CM_A a, uint at, uint w, uint half_) {
    if (half_ == 0u) a[at] = LANES_LOW(w);
    else a[at] = LANES_HIGH(w);
}

void fill_b1(inout CM_B b, uint at, uint w, uint half_) {
    if (half_ == 0u) b[at] = LANES_LOW(w);
    else b[at] = LANES_HIGH(w);
}

#endif
