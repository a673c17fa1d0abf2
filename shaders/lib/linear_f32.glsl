// Eight stored numbers as f32, for the kernels of a linear layer that multiply without matrices.
// Codes come too small or too large by a power of two, for which WEIGHT_UNSCALE and ACT_UNSCALE
// make up.
//
// With HALF_CODES, which a build defines, codes become binary16 by moving their bits, which costs
// few instructions: E4M3's exponent has bias 7, E2M1's 1 and binary16's 15, so that numbers come
// 2^8 and 2^14 times too small. All three have subnormals. (NaN codes of E4M3 come out as 480, as
// they lie behind 448.) Without it see lifted.glsl.
#ifndef LIB_LINEAR_F32_GLSL
#define LIB_LINEAR_F32_GLSL
#include "linear_format.glsl"
#include "lifted.glsl"

#ifdef HALF_CODES
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

const float FP8_UNSCALE = 256.0, E2M1_UNSCALE = 16384.0;

vec2 linear_halves(uint pair) { return vec2(unpackFloat2x16(pair)); }

vec4 linear_e4m3x4(uint w) {
    const uint v = w << 8;
    const vec2 even = linear_halves((v & 0x80008000u) | ((v >> 1) & 0x3F803F80u));
    const vec2 odd = linear_halves((w & 0x80008000u) | ((w >> 1) & 0x3F803F80u));
    return vec4(even.x, odd.x, even.y, odd.y);
}

void linear_e2m1x8(uint w, out vec4 a, out vec4 b) {
    const vec2 n0 = linear_halves(((w << 12) & 0x80008000u) | ((w << 9) & 0x0E000E00u)); // codes 0 and 4
    const vec2 n1 = linear_halves(((w << 8) & 0x80008000u) | ((w << 5) & 0x0E000E00u));
    const vec2 n2 = linear_halves(((w << 4) & 0x80008000u) | ((w << 1) & 0x0E000E00u));
    const vec2 n3 = linear_halves((w & 0x80008000u) | ((w >> 3) & 0x0E000E00u));
    a = vec4(n0.x, n1.x, n2.x, n3.x);
    b = vec4(n0.y, n1.y, n2.y, n3.y);
}

#else

const float FP8_UNSCALE = LIFTED_E4M3, E2M1_UNSCALE = LIFTED_E2M1;

vec4 linear_e4m3x4(uint w) { return lifted_e4m3x4(w); }

void linear_e2m1x8(uint w, out vec4 a, out vec4 b) {
    a = lifted_e2m1x4(w);
    b = lifted_e2m1x4(w >> 16);
}

#endif

const float WEIGHT_UNSCALE = FORMAT == WEIGHT_NVFP4 ? E2M1_UNSCALE : FORMAT == WEIGHT_BF16 ? 1.0 : FP8_UNSCALE;

// What E4M3 activations are to be multiplied by.
const float ACT_UNSCALE = ACT == ACT_BF16 ? 1.0 : FP8_UNSCALE;

// linear_bf16x8: the eight bf16 numbers of a quad.
void linear_bf16x8(uvec4 q, out vec4 a, out vec4 b) {
    a = vec4(bf16_unpack2(q.x), bf16_unpack2(q.y));
    b = vec4(bf16_unpack2(q.z), bf16_unpack2(q.w));
}

// weight8: numbers 8*j .. 8*j+7 of a quad of weights, without scales.
void weight8(uvec4 q, uint j, out vec4 a, out vec4 b) {
    if (FORMAT == WEIGHT_BF16) {
        linear_bf16x8(q, a, b);
    } else if (FORMAT == WEIGHT_NVFP4) {
        linear_e2m1x8(j < 2u ? (j == 0u ? q.x : q.y) : (j == 2u ? q.z : q.w), a, b);
    } else {
        a = linear_e4m3x4(j == 0u ? q.x : q.z);
        b = linear_e4m3x4(j == 0u ? q.y : q.w);
    }
}

// act8: numbers 8*j .. 8*j+7 of an E4M3 quad, or all of a bf16 quad, without scales.
void act8(uvec4 q, uint j, out vec4 a, out vec4 b) {
    if (ACT == ACT_BF16) {
        linear_bf16x8(q, a, b);
    } else {
        a = linear_e4m3x4(j == 0u ? q.x : q.z);
        b = linear_e4m3x4(j == 0u ? q.y : q.w);
    }
}

#endif
