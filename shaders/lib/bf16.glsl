// bf16: the upper half of a binary32. Encoding rounds to nearest, ties to even; a NaN
// stays a NaN (quiet, same sign). Integer arithmetic only: a device may flush subnormals
// and may truncate in its own conversions, and neither must show.
#ifndef LIB_BF16_GLSL
#define LIB_BF16_GLSL

// bf16_encode_bits: binary32 bits to the 16 bits of a bf16.
uint bf16_encode_bits(uint u) {
    uint rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u; // by bits: compilers may drop isnan
    return nan ? ((u >> 16) | 0x40u) : rounded;
}

uint bf16_encode(float x) { return bf16_encode_bits(floatBitsToUint(x)); }

// bf16_decode: of the low 16 bits; the upper half of the argument is ignored.
float bf16_decode(uint bits16) { return uintBitsToFloat(bits16 << 16); }

// bf16_pack2: two values in one word, lo in the low half as it lies in memory.
uint bf16_pack2(float lo, float hi) { return bf16_encode(lo) | (bf16_encode(hi) << 16); }

vec2 bf16_unpack2(uint word) {
    return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xFFFF0000u));
}

// bf16_pack2_exact: for values that are bf16 numbers already (a decoded E4M3 times a power
// of two is one), where cutting off the lower halves is exact.
uint bf16_pack2_exact(float lo, float hi) {
    return (floatBitsToUint(lo) >> 16) | (floatBitsToUint(hi) & 0xFFFF0000u);
}

#endif
