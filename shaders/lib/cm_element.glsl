// The 16-bit element type of the cooperative-matrix kernels, and how everything becomes one.
//
// f16 (the default) keeps 11 bits of each weight p. A K page's numbers are exact while its scale
// bytes lie in 112..134, where every E4M3 code has an exact binary16; from 105 on the error of a
// number is at most 2^-25. A byte above 134 counts as 134 and one below 105 as zero, and bf16
// inputs beyond +-65504 become +-65504: large finite numbers, never an infinity. V4's keys are
// RMS-normed and stay far inside.
//
// bf16 (with CM_BF16) takes every bf16 and every scale byte up to 246 (one above counts as 246),
// and keeps 8 bits of p.
//
// A NaN in a row that counts stays a NaN in both. Both need binary16's subnormals: codes below 2^-6
// are such numbers on the way. internal/opkit asks for them, and leaves these builds out on devices
// that take them for zeros.
#ifndef LIB_CM_ELEMENT_GLSL
#define LIB_CM_ELEMENT_GLSL
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "bf16.glsl"

#ifdef CM_BF16

#extension GL_EXT_bfloat16 : require
#define CM_ELEMENT bfloat16_t
#define CM_SCALE float
const float CM_STALE = 40.0; // see cm_mla.glsl: how far a weight may exceed 1, as a power of two

uint cm_from_bf16(uint pair) { return pair; }

uvec2 cm_pack(vec4 p) { return uvec2(bf16_pack2(p.x, p.y), bf16_pack2(p.z, p.w)); }

// cm_round: the bits of a number that is not negative, rounded to nearest even in the upper half; a
// NaN stays one.
uint cm_round(float p) {
    const uint u = min(floatBitsToUint(p), 0x7FFF0000u);
    return u + 0x7FFFu + ((u >> 16) & 1u);
}

// cm_pack_weights: cm_pack of numbers that are not negative.
uvec2 cm_pack_weights(vec4 p) {
    return uvec2((cm_round(p.x) >> 16) | (cm_round(p.y) & 0xFFFF0000u), (cm_round(p.z) >> 16) | (cm_round(p.w) & 0xFFFF0000u));
}

// The scale of a block, times 2^8 as cm_e4m3x4 wants it.
CM_SCALE cm_scale(uint byte_) { return uintBitsToFloat(min(byte_ + 8u, 254u) << 23); }

uvec2 cm_scaled(uint even, uint odd, CM_SCALE scale) {
    // A code times a power of two has few bits: cutting off the lower half is exact.
    const vec2 a = vec2(unpackFloat2x16(even)) * scale, b = vec2(unpackFloat2x16(odd)) * scale;
    return uvec2(bf16_pack2_exact(a.x, b.x), bf16_pack2_exact(a.y, b.y));
}

#else

#define CM_ELEMENT float16_t
#define CM_SCALE f16vec2
const float CM_STALE = 10.0;

uint cm_from_bf16(uint pair) {
    const vec2 x = bf16_unpack2(pair);
    // Below 2^-14 numbers are rounded to subnormals first, by a sum whose last place is 2^-24: the
    // conversion is exact then, so that a compiler may leave it out in one kernel and not in the
    // next. From there on the sum is exact, for a bf16 has 8 digits, as far as its last place is
    // not beyond 0.75, where numbers are too large anyway.
    precise vec2 raised = x + 0.75;
    precise vec2 exact = raised - 0.75;
    const vec2 y = mix(exact, clamp(x, vec2(-65504.0), vec2(65504.0)), greaterThan(abs(x), vec2(65504.0)));
    return packFloat2x16(f16vec2(y));
}

uvec2 cm_pack(vec4 p) { return uvec2(packFloat2x16(f16vec2(p.xy)), packFloat2x16(f16vec2(p.zw))); }

uvec2 cm_pack_weights(vec4 p) { return cm_pack(p); }

// 2^(byte-127) * 2^8, in both halves of a word: byte - 104 is the exponent field.
CM_SCALE cm_scale(uint byte_) { return unpackFloat2x16((clamp(byte_, 104u, 134u) - 104u) * 0x04000400u); }

uvec2 cm_scaled(uint even, uint odd, CM_SCALE scale) {
    const uint a = packFloat2x16(unpackFloat2x16(even) * scale), b = packFloat2x16(unpackFloat2x16(odd) * scale);
    return uvec2((a & 0xFFFFu) | (b << 16), (a >> 16) | (b & 0xFFFF0000u));
}

#endif

// cm_e4m3_place: the codes in bytes 1 and 3 of w as binary16 numbers times 2^-8, by moving their
// bits: E4M3's exponent has bias 7, binary16's 15, and both have subnormals. (binary32 would lose
// those: devices flush its subnormals.)
uint cm_e4m3_place(uint w) {
    const uint x = (w & 0x80008000u) | ((w >> 1) & 0x3F803F80u);
    return x | ((x + 0x00800080u) & 0x40004000u); // only 0x7F carries into bit 14: NaN
}

// cm_e4m3x4: the four codes of w, times a scale, as four elements in order.
uvec2 cm_e4m3x4(uint w, CM_SCALE scale) { return cm_scaled(cm_e4m3_place(w << 8), cm_e4m3_place(w), scale); }

uvec4 cm_from_bf16x8(uvec4 w) { return uvec4(cm_from_bf16(w.x), cm_from_bf16(w.y), cm_from_bf16(w.z), cm_from_bf16(w.w)); }

uvec4 cm_e4m3x8(uvec2 w, CM_SCALE scale) { return uvec4(cm_e4m3x4(w.x, scale), cm_e4m3x4(w.y, scale)); }

#endif
