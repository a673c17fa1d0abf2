// Weights as they are stored, decoded by chunks: the columns of 16 bytes, or of 32 with f32.
// Constants: 0 FORMAT; 1 HALVES: codes pass through binary16, whose subnormals the device keeps.
// Numbers come too small or too large by a power of two: UNSCALE takes that back.
#ifndef LIB_WEIGHTS_GLSL
#define LIB_WEIGHTS_GLSL
#include "activations.glsl"
#include "lib/lifted.glsl"

layout(constant_id = 0) const uint FORMAT = 4u;
layout(constant_id = 1) const uint HALVES = 0u;

const uint BF16 = 1u, F32 = 2u, FP8 = 3u, MXFP4 = 4u;
const uint COLUMNS = FORMAT == MXFP4 ? 32u : FORMAT == FP8 ? 16u : 8u; // of a chunk
const uint QUADS = FORMAT == F32 ? 2u : 1u;                            // of 16 bytes, of a chunk
const uint EIGHTS = COLUMNS / 8u;
// Exponents of E2M1 and E4M3 have bias 1 and 7, those of binary16 15. Without HALVES codes are
// lifted, see lifted.glsl.
const float UNSCALE = FORMAT == MXFP4 ? (HALVES == 1u ? 16384.0 : LIFTED_E2M1)
    : FORMAT == FP8                   ? (HALVES == 1u ? 256.0 : LIFTED_E4M3)
                                      : 1.0;

// e2m1_8: the codes of a word as pack.comp leaves them, the lowest first. In binary16 their bits
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

// decode8: columns 8j to 8j+7 of a chunk, without scales; b is its second quad.
void decode8(uvec4 a, uvec4 b, uint j, out float v[8]) {
    if (FORMAT == MXFP4) {
        e2m1_8(a[j], v);
    } else if (FORMAT == FP8) {
        const vec4 x = e4m3_4(a[2u * j]), y = e4m3_4(a[2u * j + 1u]);
        v = float[8](x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w);
    } else if (FORMAT == BF16) {
        bf16_unpack8(a, v);
    } else {
        const vec4 x = uintBitsToFloat(a), y = uintBitsToFloat(b);
        v = float[8](x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w);
    }
}

#endif
