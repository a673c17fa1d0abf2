// Codes of E4M3 and E2M1 as f32, in few instructions and without branches. Numbers come 2^8 and 2^2
// times too large. Exact, signed zeros and subnormal codes included; NaN codes of E4M3 give 480,
// since they lie behind 448.
#ifndef LIB_LIFTED_GLSL
#define LIB_LIFTED_GLSL

const float LIFTED_E4M3 = 1.0 / 256.0; // what takes that back
const float LIFTED_E2M1 = 0.25;

// lifted: a number from its sign and the bits of its exponent and fraction, which stand below the
// highest bit of an f32's exponent. That bit, set, gives the exponent another bias, and a subnormal
// code, of exponent 0, a leading one that it should not have. Twice the number less 4 is right then,
// and not less than the number otherwise.
float lifted(uint bits, uint sign) {
    const float v = uintBitsToFloat(bits | 0x40000000u);
    return uintBitsToFloat(floatBitsToUint(min(v, v * 2.0 - 4.0)) | (sign & 0x80000000u));
}

// lifted_e4m3x4: the four codes of a word.
vec4 lifted_e4m3x4(uint w) {
    return vec4(lifted((w << 20) & 0x07F00000u, w << 24), lifted((w << 12) & 0x07F00000u, w << 16),
        lifted((w << 4) & 0x07F00000u, w << 8), lifted((w >> 4) & 0x07F00000u, w));
}

// lifted_e2m1x4: the four codes in the low half of a word.
vec4 lifted_e2m1x4(uint w) {
    return vec4(lifted((w << 22) & 0x01C00000u, w << 28), lifted((w << 18) & 0x01C00000u, w << 24),
        lifted((w << 14) & 0x01C00000u, w << 20), lifted((w << 10) & 0x01C00000u, w << 16));
}

#endif
