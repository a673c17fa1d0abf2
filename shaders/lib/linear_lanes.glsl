// Operands of cooperative matrices from memory to registers: a quad of weights, or eight numbers of
// x, become components of a lane. The order of k in a product is free as long as both operands have
// the same one, so it is the one that decoding yields.
//
// Included where CM_A and CM_B are the types of operands.
#ifndef LIB_LINEAR_LANES_GLSL
#define LIB_LINEAR_LANES_GLSL
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#include "linear_cm.glsl"

// lows, highs: a word of two words' lower or upper halves. Of 16-bit halves, compilers make it one
// instruction where of masks and shifts they need not.
uint lows(uint a, uint b) { return pack32(u16vec2(unpack16(a).x, unpack16(b).x)); }
uint highs(uint a, uint b) { return pack32(u16vec2(unpack16(a).y, unpack16(b).y)); }

// in_order: eight elements of x, two a word, in the order of weight_pairs.
uvec4 in_order(uvec4 v) {
    if (FORMAT == WEIGHT_BF16) return v;
    if (FORMAT == WEIGHT_NVFP4) return uvec4(lows(v.x, v.z), highs(v.x, v.z), lows(v.y, v.w), highs(v.y, v.w));
    return uvec4(lows(v.x, v.y), highs(v.x, v.y), lows(v.z, v.w), highs(v.z, v.w));
}

// Codes become binary16 numbers by moving their bits, 2^8 (E4M3) and 2^14 (E2M1) times too small;
// all have subnormals. A block's scale of NVFP4 comes 2^7 times too large, one of SMALL_BLOCKS 2^15
// times.
const float LANES_UNSCALE = FORMAT == WEIGHT_NVFP4 ? 128.0 : SMALL_BLOCKS ? 1.0 / 128.0 : FP8_WEIGHT ? 256.0 : 1.0;

// element: a pair of binary16 numbers of few bits as elements.
uint element(uint halves) {
#ifdef CM_BF16
    const vec2 v = unpackFloat2x16(halves);
    return highs(floatBitsToUint(v.x), floatBitsToUint(v.y)); // the lower halves are 0
#else
    return halves;
#endif
}

// nv_scale: the scale of word j of a quad, of the two that bits hold.
f16vec2 nv_scale(uint bits, uint j) { return unpackFloat2x16((bits >> (j / 2u * 8u) & 0x7Fu) * 0x00800080u) * f16vec2(32768.0); }

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

// weight_pairs: a word's elements, two a word: (0,1) (bf16), (0,2) (1,3) (E4M3), (0,4) (1,5) (2,6)
// (3,7) (E2M1). scale is of NVFP4, relative of SMALL_BLOCKS.
void weight_pairs(uint w, f16vec2 scale, float relative, out uint o[4]) {
    if (FORMAT == WEIGHT_BF16) {
        o[0] = cm_from_bf16(w);
    } else if (FORMAT == WEIGHT_NVFP4) {
        const uint a = ((w << 12) & 0x80008000u) | ((w << 9) & 0x0E000E00u);
        const uint b = ((w << 8) & 0x80008000u) | ((w << 5) & 0x0E000E00u);
        const uint c = ((w << 4) & 0x80008000u) | ((w << 1) & 0x0E000E00u);
        const uint d = (w & 0x80008000u) | ((w >> 3) & 0x0E000E00u);
        o[0] = element(packFloat2x16(unpackFloat2x16(a) * scale));
        o[1] = element(packFloat2x16(unpackFloat2x16(b) * scale));
        o[2] = element(packFloat2x16(unpackFloat2x16(c) * scale));
        o[3] = element(packFloat2x16(unpackFloat2x16(d) * scale));
    } else if (SMALL_BLOCKS) {
        o[0] = scaled_element(linear_e4m3(w << 8), relative);
        o[1] = scaled_element(linear_e4m3(w), relative);
    } else {
        o[0] = element(linear_e4m3(w << 8));
        o[1] = element(linear_e4m3(w));
    }
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
