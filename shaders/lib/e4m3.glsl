// E4M3, the "fn" flavour: sign, 4 exponent bits (bias 7), 3 fraction bits, no infinity,
// 0x7F and 0xFF are NaN, the largest number is 448 = 0x7E, the smallest 2^-9 = 0x01.
// Encoding rounds to nearest, ties to even, and saturates at 448; NaN becomes 0x7F.
#ifndef LIB_E4M3_GLSL
#define LIB_E4M3_GLSL

// e4m3_encode_bits: binary32 bits to an E4M3 byte. Integers round, and the one sum is exact
// wherever it decides. So neither the device's rounding mode nor its treatment of subnormals can
// change a code.
uint e4m3_encode_bits(uint u) {
    uint a = u & 0x7FFFFFFFu;
    // Below 2^-6 codes are multiples of 2^-9, and the sum with 2^-6 has just these as its first
    // three fraction bits. To make it exact from 2^-17 on, the lowest 11 bits become one that says
    // whether any was set; what is smaller rounds to 0 in any case.
    uint sticky = (a | ((a & 0x7FFu) + 0x7FFu)) & 0x7FFFF800u;
    precise float raised = uintBitsToFloat(sticky) + 0.015625;
    bool tiny = a < 0x3C800000u;
    uint z = tiny ? floatBitsToUint(raised) : a;
    // Keep 3 fraction bits, move the exponent from bias 127 to bias 7; 2^-6 itself is 8.
    uint code = min(((z + 0x7FFFFu + ((z >> 20) & 1u)) >> 20) - (tiny ? 968u : 960u), 0x7Eu);
    return a > 0x7F800000u ? 0x7Fu : (code | ((u >> 24) & 0x80u));
}

uint e4m3_encode(float x) { return e4m3_encode_bits(floatBitsToUint(x)); }

// e4m3_codes4: the magnitudes of four finite numbers as codes, one a byte. Numbers come 2^7 times
// too large and are below 464 * 2^7. Let p be the power of two at or below a number, at least
// 2 = 2^7 * 2^-6. The sum with 2^20 p has units of p/8 in its last place: 8 to 16 of them, or 0 to 8
// below 2, and its other low bits are 0. p brings 8 for each octave from 2 on, and its exponent, 128
// there, leaves no more than that in the low byte.
uint e4m3_codes4(vec4 y) {
    uvec4 code;
    for (uint j = 0u; j < 4u; j++) {
        float a = abs(y[j]);
        uint p = floatBitsToUint(max(a, 2.0)) & 0x7F800000u;
        precise float sum = fma(uintBitsToFloat(p), 1048576.0, a);
        code[j] = floatBitsToUint(sum) + (p >> 20);
    }
    return (code.x & 0xFFu) | ((code.y & 0xFFu) << 8) | ((code.z & 0xFFu) << 16) | (code.w << 24);
}

// e4m3_decode: of the low 8 bits; the rest of the argument is ignored.
float e4m3_decode(uint b) {
    uint mag = b & 0x7Fu;
    // Bias 7 to bias 127. With exponent bits 0 this reads 2^-7 * (1 + m/8), from which
    // m * 2^-9 follows exactly, without ever forming a binary32 subnormal.
    float v = uintBitsToFloat((mag << 20) + 0x3C000000u);
    precise float tiny = v + v - 0.015625;
    float a = mag < 8u ? tiny : v;
    uint bits = mag == 0x7Fu ? 0x7FC00000u : floatBitsToUint(a);
    return uintBitsToFloat(bits | ((b & 0x80u) << 24));
}

// e4m3_decode4: the four bytes of a word, low byte first.
vec4 e4m3_decode4(uint word) {
    return vec4(e4m3_decode(word), e4m3_decode(word >> 8), e4m3_decode(word >> 16), e4m3_decode(word >> 24));
}

#endif
