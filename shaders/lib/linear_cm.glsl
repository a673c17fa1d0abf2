// Eight stored numbers of a linear layer as elements of cooperative matrices.
//
// bf16 (CM_BF16): every bf16 number and E4M3 code times a power of two is exact, and so is E2M1
//   times an E4M3 scale.
// f16: weights with STEP_SUMS are kept relative to the largest scale of their rows (WEIGHT_REF, a
//   power of two), so that scales of any size work: exact to 2^-15 of it, then with steps of 2^-24.
//   bf16 weights and activations beyond +-65504 count as that, and below 2^-14 come in steps of
//   2^-24. E2M1 times E4M3 is exact.
//
// Sums come CM_UNSCALE times too small.
#ifndef LIB_LINEAR_CM_GLSL
#define LIB_LINEAR_CM_GLSL
#include "linear.glsl"
#include "cm_element.glsl"

#if defined(CM_BF16) || defined(LINEAR_CODES)
const bool WEIGHT_REF = false;
#else
const bool WEIGHT_REF = STEP_SUMS;
#endif

#ifdef LINEAR_HALVES
// lows, highs: a word of two words' lower or upper halves. Of 16-bit halves, compilers make it one
// instruction, where masks and shifts are two or three. It needs shaderInt16.
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
uint lows(uint a, uint b) { return pack32(u16vec2(unpack16(a).x, unpack16(b).x)); }
uint highs(uint a, uint b) { return pack32(u16vec2(unpack16(a).y, unpack16(b).y)); }
#endif

#if defined(CM_BF16) && defined(LINEAR_HALVES)
// linear_near: two numbers rounded to elements, ties away from zero.
uint linear_near(vec2 v) { return highs(floatBitsToUint(v.x) + 0x8000u, floatBitsToUint(v.y) + 0x8000u); }
#endif

// linear_scaled: pairs (a0,a2), (a1,a3) of binary16 numbers times a factor of few bits, in order.
uvec2 linear_scaled(uint even, uint odd, float factor) {
#ifdef CM_BF16
    const vec2 a = vec2(unpackFloat2x16(even)) * factor, b = vec2(unpackFloat2x16(odd)) * factor;
#ifdef LINEAR_HALVES
    const uvec2 i = floatBitsToUint(a), j = floatBitsToUint(b);
    return uvec2(highs(i.x, j.x), highs(i.y, j.y));
#else
    return uvec2(bf16_pack2_exact(a.x, b.x), bf16_pack2_exact(a.y, b.y));
#endif
#else
    return cm_scaled(even, odd, f16vec2(float16_t(factor)));
#endif
}

#define FORMAT_ELEMENTS
#include "format_list.glsl"
#undef FORMAT_ELEMENTS

#ifdef LINEAR_CODES
const float CM_UNSCALE = 1.0;
#else
#define CASE_ELEMENT_UNIT(upper, lower) CODEC == CODEC_##upper ? upper##_ELEMENT_UNIT :
const float CM_UNSCALE = CODECS(CASE_ELEMENT_UNIT) 1.0;
#endif

// linear_act8: eight numbers of x; scale: f32 bits of an E4M3 block's.
uvec4 linear_act8(uvec4 w, uint scale) {
    if (ACT == ACT_BF16) return cm_from_bf16x8(w);
    const uint byte_ = scale >> 23;
#ifdef CM_BF16
    const float factor = uintBitsToFloat(min(byte_ + 8u, 254u) << 23);
#else
    const float factor = uintBitsToFloat((clamp(byte_, 103u, 134u) + 8u) << 23);
#endif
    return FP8_SCALED(w, factor);
}

// linear_weight8: an eight of w. With STEP_SUMS beside.x has the f32 bits of the block's scale, and
// ref those of WEIGHT_REF.
uvec4 linear_weight8(uvec4 w, uvec2 beside, uint part, uint ref) {
#define CASE_ELEMENTS(upper, lower) if (CODEC == CODEC_##upper) return lower##_elements(w, beside, part, ref);
    CODECS(CASE_ELEMENTS)
    return uvec4(0u);
}

#endif
