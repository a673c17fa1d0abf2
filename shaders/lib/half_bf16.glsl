// A bf16 number as the binary16 element that cm_from_bf16 of lib/cm_element.glsl makes of it, with
// the same bits, where no 16-bit arithmetic is to be had: integers and one rounding.
#ifndef LIB_HALF_BF16_GLSL
#define LIB_HALF_BF16_GLSL

// half_from_bf16: of the low 16 bits. Beyond +-65504 it is that, below 2^-14 a multiple of 2^-24
// to nearest even; a NaN stays one.
uint half_from_bf16(uint bits16) {
    const uint u = bits16 & 0x7FFFu, sign = bits16 & 0x8000u;
    if (u > 0x7F80u) return sign | 0x7E00u;
    if (u >= 0x4780u) return sign | 0x7BFFu;
    if (u >= 0x3880u) return sign | ((u << 3) - 0x1C000u);
    const uint tiny = uint(roundEven(uintBitsToFloat(u << 16) * 16777216.0));
    return tiny == 0u ? 0u : sign | tiny;
}

uint half_from_bf16x2(uint pair) { return half_from_bf16(pair & 0xFFFFu) | half_from_bf16(pair >> 16) << 16; }

uvec4 half_from_bf16x8(uvec4 w) {
    return uvec4(half_from_bf16x2(w.x), half_from_bf16x2(w.y), half_from_bf16x2(w.z), half_from_bf16x2(w.w));
}

#endif
