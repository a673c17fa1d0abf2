// E2M1: sign in bit 3, codes 0..7 = 0, 0.5, 1, 1.5, 2, 3, 4, 6. Encoding rounds to
// nearest, ties to the even code, saturates at 6 and keeps the sign of a zero; NaN
// becomes +6, as the saturating hardware conversion has it.
#ifndef LIB_E2M1_GLSL
#define LIB_E2M1_GLSL

// e2m1_encode_bits: binary32 bits to a nibble, in integers like e4m3_encode_bits.
uint e2m1_encode_bits(uint u) {
    uint a = u & 0x7FFFFFFFu;
    // a >= 1: keep one fraction bit, move the exponent from bias 127 to bias 1.
    uint normal = min(((a + 0x1FFFFFu + ((a >> 22) & 1u)) >> 22) - 252u, 7u);
    // a < 1: a multiple of 1/2; everything below 1/4 rounds to 0.
    uint m = (a & 0x7FFFFFu) | 0x800000u;
    uint s = uint(clamp(149 - int(a >> 23), 23, 30));
    uint tiny = (m + ((1u << (s - 1u)) - 1u) + ((m >> s) & 1u)) >> s;
    uint code = (a < 0x3F800000u ? tiny : normal) | ((u >> 28) & 8u);
    return a > 0x7F800000u ? 7u : code;
}

uint e2m1_encode(float scaled) { return e2m1_encode_bits(floatBitsToUint(scaled)); }

// e2m1_decode: of the low 4 bits; the rest of the argument is ignored.
float e2m1_decode(uint nibble) {
    uint mag = nibble & 7u;
    uint bits = mag < 2u ? mag * 0x3F000000u : (mag << 22) + 0x3F000000u; // 0, 0.5 | bias 1 to 127
    return uintBitsToFloat(bits | ((nibble & 8u) << 28));
}

#endif
