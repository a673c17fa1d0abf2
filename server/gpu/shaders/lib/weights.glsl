// Weights as they are stored, decoded by chunks: the columns of 16 bytes, or of 32 with f32.
// Constants: 0 FORMAT; 1 HALVES: codes pass through binary16, whose subnormals the device keeps.
// Numbers come too small or too large by a power of two: UNSCALE takes that back.
#ifndef LIB_WEIGHTS_GLSL
#define LIB_WEIGHTS_GLSL
#include "activations.glsl"
#include "lib/lifted.glsl"
#include "lib/f16.glsl"

layout(constant_id = 0) const uint FORMAT = 4u;
layout(constant_id = 1) const uint HALVES = 0u;

const uint BF16 = 1u, F32 = 2u, FP8 = 3u, MXFP4 = 4u, F16 = 5u, Q8_0 = 6u, Q4_K = 7u, Q2_K = 8u, Q6_K = 9u, IQ2_XXS = 10u;
const bool BY64 = FORMAT == Q2_K || FORMAT == Q6_K || FORMAT == IQ2_XXS;
const uint COLUMNS = BY64 ? 64u : FORMAT == MXFP4 || FORMAT == Q8_0 || FORMAT == Q4_K ? 32u : FORMAT == FP8 ? 16u : 8u; // of a chunk
const uint QUADS = FORMAT == Q6_K ? 3u : FORMAT == F32 || FORMAT == Q8_0 ? 2u : 1u; // of 16 bytes, of a chunk
const uint EIGHTS = COLUMNS / 8u;
const uint PARTS = FORMAT == Q2_K || FORMAT == Q6_K ? 4u : FORMAT == IQ2_XXS ? 2u : 1u; // of a chunk, with a scale each
const bool WHOLE = FORMAT >= Q8_0; // codes are bytes, or become some
// A code less something that a part has in common: sums of x take it off.
const bool MINIMA = FORMAT == Q8_0 || FORMAT == Q4_K || FORMAT == Q2_K || FORMAT == Q6_K;
// Exponents of E2M1 and E4M3 have bias 1 and 7, those of binary16 15. Without HALVES codes are
// lifted, see lifted.glsl. Whole numbers are subnormals of binary16.
const float UNSCALE = FORMAT == MXFP4 ? (HALVES == 1u ? 16384.0 : LIFTED_E2M1)
    : FORMAT == FP8                   ? (HALVES == 1u ? 256.0 : LIFTED_E4M3)
    : FORMAT >= Q8_0 && HALVES == 1u  ? 16777216.0
                                      : 1.0;

// e2m1_8: the codes of a word as unpack.comp leaves them, the lowest first. In binary16 their bits
// are 0x8E00: those of columns 2 and 6, and of 0 and 4, only have to be masked. Those between are
// moved together.
void e2m1_8(uint w, out float v[8]) {
    if (HALVES == 1u) {
        const uint odd = ((w >> 3) & 0x0E0E0E0Eu) | ((w << 7) & 0xF1F1F1F1u);
        const vec2 a = unpackHalf2x16((w << 8) & 0x8E008E00u), c = unpackHalf2x16(w & 0x8E008E00u);
        const vec2 b = unpackHalf2x16((odd << 8) & 0x8E008E00u), d = unpackHalf2x16(odd & 0x8E008E00u);
        v = float[8](a.x, b.x, c.x, d.x, a.y, b.y, c.y, d.y);
    } else {
        v = float[8](lifted((w << 21) & 0x01C00000u, w << 24), lifted((w << 18) & 0x01C00000u, w << 31),
            lifted((w << 13) & 0x01C00000u, w << 16), lifted((w << 10) & 0x01C00000u, w << 23),
            lifted((w << 5) & 0x01C00000u, w << 8), lifted((w << 2) & 0x01C00000u, w << 15),
            lifted((w >> 3) & 0x01C00000u, w), lifted((w >> 6) & 0x01C00000u, w << 7));
    }
}

// e4m3_4: the codes of a word, the lowest first.
vec4 e4m3_4(uint w) {
    if (HALVES == 1u) {
        const uint u = w << 8;
        const vec2 even = unpackHalf2x16((u & 0x80008000u) | ((u >> 1) & 0x3F803F80u));
        const vec2 odd = unpackHalf2x16((w & 0x80008000u) | ((w >> 1) & 0x3F803F80u));
        return vec4(even.x, odd.x, even.y, odd.y);
    }
    return lifted_e4m3x4(w);
}

// whole: the numbers, of at most ten bits, that both halves of a word are.
vec2 whole(uint pair) { return HALVES == 1u ? unpackHalf2x16(pair) : vec2(pair & 0xFFFFu, pair >> 16); }

// bytes4: the numbers that the bytes of a word are, the lowest first.
vec4 bytes4(uint w) {
    const vec2 even = whole(w & 0x00FF00FFu), odd = whole((w >> 8) & 0x00FF00FFu);
    return vec4(even.x, odd.x, even.y, odd.y);
}

// halves2: two numbers of binary16.
vec2 halves2(uint w) { return HALVES == 1u ? unpackHalf2x16(w) : vec2(f16_decode(w), f16_decode(w >> 16)); }

#include "iq2_xxs.glsl"

// decode8: columns 8j to 8j+7 of a chunk, without scales. Codes of Q4_K, Q2_K and Q6_K lie in words
// whose bytes have one each of four neighbours.
void decode8(uvec4 q[QUADS], uint j, out float v[8]) {
    if (FORMAT == MXFP4) {
        e2m1_8(q[0][j], v);
    } else if (FORMAT == FP8) {
        const vec4 x = e4m3_4(q[0][2u * j]), y = e4m3_4(q[0][2u * j + 1u]);
        v = float[8](x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w);
    } else if (FORMAT == BF16) {
        bf16_unpack8(q[0], v);
    } else if (FORMAT == F32) {
        const vec4 x = uintBitsToFloat(q[0]), y = uintBitsToFloat(q[QUADS - 1u]);
        v = float[8](x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w);
    } else if (FORMAT == F16) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            const vec2 p = halves2(q[0][i]);
            v[2u * i] = p.x;
            v[2u * i + 1u] = p.y;
        }
    } else if (FORMAT == Q8_0) { // bytes, less 128
        const vec4 x = bytes4(q[j / 2u][j % 2u * 2u] ^ 0x80808080u), y = bytes4(q[j / 2u][j % 2u * 2u + 1u] ^ 0x80808080u);
        v = float[8](x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w);
    } else if (FORMAT == IQ2_XXS) {
        iq2_xxs_8(q[0][j / 4u * 2u], q[0][j / 4u * 2u + 1u], j % 4u, v);
    } else {
        [[unroll]] for (uint i = 0u; i < 4u; i++) { // columns 4f+odd and two more
            const uint f = i / 2u, odd = i % 2u;
            uint pair;
            if (FORMAT == Q2_K) {
                pair = q[0][j / 2u] >> (8u * odd + 4u * (j % 2u) + 2u * f) & 0x00030003u;
            } else {
                pair = q[j / 4u % QUADS][j % 4u] >> (8u * odd + 4u * f) & 0x000F000Fu;
                if (FORMAT == Q6_K) pair |= (q[QUADS - 1u][j / 2u] >> (8u * odd + 4u * (j % 2u) + 2u * f) & 0x00030003u) << 4;
            }
            const vec2 p = whole(pair);
            v[4u * f + odd] = p.x;
            v[4u * f + odd + 2u] = p.y;
        }
    }
}

#endif
