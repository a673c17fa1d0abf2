// Four bf16 values, as they lie in two words, to codes under a common power of two. The
// product is exact unless it underflows, far below the smallest code; the sign comes from
// the input, so that flushing cannot lose it.
#ifndef LIB_QUANTISE_GLSL
#define LIB_QUANTISE_GLSL
#extension GL_EXT_control_flow_attributes : require
#include "lib/e4m3.glsl"
#include "lib/e2m1.glsl"
#include "lib/ue8m0.glsl"

// quantise_scaled: bits of value j (0..3) times inverse.
uint quantise_scaled(uvec2 w, uint j, float inverse) {
    uint half_word = j < 2u ? w.x : w.y;
    uint bits = (j & 1u) == 0u ? half_word << 16 : half_word & 0xFFFF0000u;
    float y = uintBitsToFloat(bits & 0x7FFFFFFFu) * inverse;
    return (floatBitsToUint(y) & 0x7FFFFFFFu) | (bits & 0x80000000u);
}

// quantise4: four E4M3 bytes.
uint quantise4(uvec2 w, float inverse) {
    uint codes = 0u;
    for (uint j = 0u; j < 4u; j++) codes |= e4m3_encode_bits(quantise_scaled(w, j, inverse)) << (8u * j);
    return codes;
}

// quantise8: four words to eight bytes; usual if all numbers of the block are finite. Then its
// scale keeps them at most 448, up to the rounding of 1/448, and the codes are those of
// quantise4.
uint quantise4_usual(uvec2 w, float inverse) {
    precise vec4 y = vec4(uintBitsToFloat(w.x << 16), uintBitsToFloat(w.x & 0xFFFF0000u),
                          uintBitsToFloat(w.y << 16), uintBitsToFloat(w.y & 0xFFFF0000u)) * (inverse * 128.0);
    return e4m3_codes4(y) | ((w.x >> 8) & 0x80u) | ((w.x >> 16) & 0x8000u) | ((w.y << 8) & 0x800000u) | (w.y & 0x80000000u);
}

// quantise4_any: the codes of quantise4; usual as in quantise8.
uint quantise4_any(uvec2 w, float inverse, bool usual) {
    if (usual) return quantise4_usual(w, inverse);
    uint codes = 0u;
    [[dont_unroll]] for (uint j = 0u; j < 4u; j++) codes |= e4m3_encode_bits(quantise_scaled(w, j, inverse)) << (8u * j);
    return codes;
}

uvec2 quantise8(uvec4 w, float inverse, bool usual) {
    if (usual) return uvec2(quantise4_usual(w.xy, inverse), quantise4_usual(w.zw, inverse));
    uvec2 codes = uvec2(0u);
    [[dont_unroll]] for (uint k = 0u; k < 2u; k++) {
        codes = uvec2(codes.y, quantise4(w.xy, inverse));
        w = w.zwxy;
    }
    return codes;
}

// quantise4_e2m1: four E2M1 nibbles in 16 bits.
uint quantise4_e2m1(uvec2 w, float inverse) {
    uint codes = 0u;
    for (uint j = 0u; j < 4u; j++) codes |= e2m1_encode_bits(quantise_scaled(w, j, inverse)) << (4u * j);
    return codes;
}

// quantise_amax: the largest magnitude of the four, as bf16 bits without sign: they order
// like the numbers.
uint quantise_amax(uvec2 w) {
    uvec2 m = max(w & 0x7FFFu, (w >> 16) & 0x7FFFu);
    return max(m.x, m.y);
}

#endif
