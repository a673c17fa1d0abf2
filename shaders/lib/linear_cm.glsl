// Eight stored numbers of a linear layer as elements of cooperative matrices.
//
// bf16 (CM_BF16): every bf16 number and E4M3 code times a power of two is exact, and so is E2M1
//   times an E4M3 scale.
// f16: E4M3 weights are kept relative to the largest scale of their rows (WEIGHT_REF, a power of
//   two), so that scales of any size work: exact to 2^-15 of it, then with steps of 2^-24. bf16
//   weights and activations beyond +-65504 count as that, and below 2^-14 come in steps of 2^-24.
//   E2M1 times E4M3 is exact.
//
// Of an f32 scale only the power of two is multiplied here; its fraction is the sums'.
// Sums come CM_UNSCALE times too small.
#ifndef LIB_LINEAR_CM_GLSL
#define LIB_LINEAR_CM_GLSL
#include "linear.glsl"
#include "cm_element.glsl"

#ifdef PLACED
const bool WEIGHT_REF = false;
const float CM_UNSCALE = 65536.0;
#elif defined(CM_BF16) || defined(LINEAR_CODES)
const bool WEIGHT_REF = false;
const float CM_UNSCALE = 1.0;
#else
const bool WEIGHT_REF = FP8_WEIGHT;
const float CM_UNSCALE = FORMAT == WEIGHT_NVFP4 ? 128.0 : 1.0;
#endif

// linear_e4m3: the codes in bytes 1 and 3 of w as binary16 numbers times 2^-8; a NaN code gives
// 480.
uint linear_e4m3(uint w) { return (w & 0x80008000u) | ((w >> 1) & 0x3F803F80u); }

#ifdef LINEAR_HALVES
// linear_highs: the upper halves of two numbers; one instruction, where masks and shifts are two or
// three. It needs shaderInt16.
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
uint linear_highs(uint lo, uint hi) { return pack32(u16vec2(unpack16(lo).y, unpack16(hi).y)); }
#endif

// linear_scaled: pairs (a0,a2), (a1,a3) of binary16 numbers times a factor of few bits, in order.
uvec2 linear_scaled(uint even, uint odd, float factor) {
#ifdef CM_BF16
    const vec2 a = vec2(unpackFloat2x16(even)) * factor, b = vec2(unpackFloat2x16(odd)) * factor;
#ifdef LINEAR_HALVES
    const uvec2 i = floatBitsToUint(a), j = floatBitsToUint(b);
    return uvec2(linear_highs(i.x, j.x), linear_highs(i.y, j.y));
#else
    return uvec2(bf16_pack2_exact(a.x, b.x), bf16_pack2_exact(a.y, b.y));
#endif
#else
    return cm_scaled(even, odd, f16vec2(float16_t(factor)));
#endif
}

// linear_fp8x8: eight codes times 2^-8 times a factor.
uvec4 linear_fp8x8(uvec2 w, float factor) {
    return uvec4(linear_scaled(linear_e4m3(w.x << 8), linear_e4m3(w.x), factor),
                 linear_scaled(linear_e4m3(w.y << 8), linear_e4m3(w.y), factor));
}

// linear_act8: eight numbers of x; scale: f32 bits of an E4M3 block's.
uvec4 linear_act8(uvec4 w, uint scale) {
    if (ACT == ACT_BF16) return cm_from_bf16x8(w);
    const uint byte_ = scale >> 23;
#ifdef CM_BF16
    return linear_fp8x8(w.xy, uintBitsToFloat(min(byte_ + 8u, 254u) << 23));
#else
    return linear_fp8x8(w.xy, uintBitsToFloat((clamp(byte_, 103u, 134u) + 8u) << 23));
#endif
}

// linear_weight8: eight numbers of w. scale: f32 bits of an FP8 block's, ref: of WEIGHT_REF; or the
// code of an NVFP4 block's.
uvec4 linear_weight8(uvec4 w, uint scale, uint ref) {
    if (FORMAT == WEIGHT_BF16) return cm_from_bf16x8(w);
    if (FORMAT == WEIGHT_NVFP4) {
        const float factor = e4m3_decode(scale) * (CM_UNSCALE == 1.0 ? 16384.0 : 128.0); // E2M1 comes 2^-14 too small
        const uint n0 = ((w.x << 12) & 0x80008000u) | ((w.x << 9) & 0x0E000E00u); // codes 0 and 4
        const uint n1 = ((w.x << 8) & 0x80008000u) | ((w.x << 5) & 0x0E000E00u);
        const uint n2 = ((w.x << 4) & 0x80008000u) | ((w.x << 1) & 0x0E000E00u);
        const uint n3 = (w.x & 0x80008000u) | ((w.x >> 3) & 0x0E000E00u);
        const uvec2 a = linear_scaled(n0, n1, factor), b = linear_scaled(n2, n3, factor);
        return uvec4(a.x, b.x, a.y, b.y);
    }
    const float power = uintBitsToFloat(scale & 0xFF800000u);
    return linear_fp8x8(w.xy, (WEIGHT_REF ? power * uintBitsToFloat(0x7F000000u - ref) : power) * 256.0);
}

#endif
