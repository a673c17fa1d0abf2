// Eight stored numbers as f32, for the kernels of a linear layer that multiply without matrices.
// Codes come too small or too large by a power of two, for which WEIGHT_UNSCALE and ACT_UNSCALE
// make up.
//
// With HALF_CODES, which a build defines, codes become binary16 by moving their bits, which costs
// few instructions. Without it see lifted.glsl.
#ifndef LIB_LINEAR_F32_GLSL
#define LIB_LINEAR_F32_GLSL
#include "formats.glsl"
#include "lifted.glsl"

#ifdef HALF_CODES
vec2 linear_halves(uint pair) { return vec2(unpackFloat2x16(pair)); }
#endif

#define FORMAT_F32
#include "format_list.glsl"
#undef FORMAT_F32

#define CASE_UNIT(upper, lower) CODEC == CODEC_##upper ? upper##_UNIT :
const float WEIGHT_UNSCALE = CODECS(CASE_UNIT) 1.0;

// weight8: numbers 8*j .. 8*j+7 of a quad of weights, without what weight_factor gives.
void weight8(uvec4 q, uint j, uvec2 beside, out vec4 a, out vec4 b) {
    const uvec4 w = weight_eight(q, j);
#define CASE_F32(upper, lower) if (CODEC == CODEC_##upper) lower##_f32(w, beside, a, b);
    CODECS(CASE_F32)
}

// weight_factor: with ROWWISE, scale `part` of those beside a quad.
float weight_factor(uvec2 beside, uint part) {
#define CASE_FACTOR(upper, lower) if (CODEC == CODEC_##upper) return lower##_factor(beside, part);
    ROWWISE_CODECS(CASE_FACTOR)
    return 1.0;
}

// What E4M3 activations are to be multiplied by.
const float ACT_UNSCALE = ACT == ACT_BF16 ? 1.0 : FP8_UNIT;

// act8: numbers 8*j .. 8*j+7 of an E4M3 quad, or all of a bf16 quad, without scales.
void act8(uvec4 q, uint j, out vec4 a, out vec4 b) {
    if (ACT == ACT_BF16) bf16_f32(q, uvec2(0u), a, b);
    else fp8_f32(j == 0u ? q : q.zwzw, uvec2(0u), a, b);
}

#endif
