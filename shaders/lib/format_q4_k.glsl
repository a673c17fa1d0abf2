// Q4_K: codes of 4 bits, with a scale and a minimum for each 32 of a row, and a power of two for
// the row, so that no element of f16 is too large. See formats.glsl, and package projection for
// where codes and scales, [G*N, K/64] words, lie.
//
// A number is code * scale - minimum: the product is exact, and the difference rounded to f32.
#ifndef Q4_K_SCALES
#define Q4_K_SCALES
// q4_k_scales: scale and minimum, exact, of the block's.
vec2 q4_k_scales(vec2 block, uvec2 beside) {
    const uvec2 six = uvec2((beside.y & 15u) | (beside.y >> 4 & 0x30u), (beside.y >> 4 & 15u) | (beside.y >> 6 & 0x30u));
    return block * vec2(six);
}
#endif

#ifdef FORMAT_BESIDE
// q4_k_beside: two f16; and a scale and a minimum of six bits, low four bits of both first.
uvec2 q4_k_beside(uint row, uint k) {
    const uint i = (row * (ROW_LENGTH / 256u) + k / 256u) * 4u, part = k / 32u % 8u;
    const uint low = SCALE_WORD(i + 1u + part / 4u) >> (part % 4u * 8u), high = SCALE_WORD(i + 3u) >> (part * 4u);
    return uvec2(SCALE_WORD(i), (low & 0xFFu) | (high & 15u) << 8);
}
#endif

#ifdef FORMAT_F32
const float Q4_K_UNIT = 1.0;

// q4_k_f32x2: the codes that w's halves begin with. As binary16 they come 2^24 times too small.
vec2 q4_k_f32x2(uint w, vec2 scales) {
#ifdef HALF_CODES
    return linear_halves(w & 0x000F000Fu) * (scales.x * 16777216.0) - scales.y;
#else
    return (uintBitsToFloat(uvec2(w & 15u, w >> 16 & 15u) | 0x4B000000u) - 8388608.0) * scales.x - scales.y;
#endif
}

void q4_k_f32(uvec4 w, uvec2 beside, out vec4 a, out vec4 b) {
    const vec2 scales = q4_k_scales(vec2(f16_convert(beside.x), f16_convert(beside.x >> 16)), beside);
    a = vec4(q4_k_f32x2(w.x, scales), q4_k_f32x2(w.x >> 4, scales));
    b = vec4(q4_k_f32x2(w.x >> 8, scales), q4_k_f32x2(w.x >> 12, scales));
}

float q4_k_factor(uvec2 beside, uint part) { return 1.0; } // it is in the numbers
#endif

#ifdef FORMAT_ELEMENTS
const float Q4_K_ELEMENT_UNIT = 1.0;

// q4_k_pair: the codes that w's halves begin with as numbers, rounded to elements.
uint q4_k_pair(uint w, vec2 scales) {
    const vec2 v = vec2(unpackFloat2x16((w & 0x000F000Fu) | 0x64006400u) - f16vec2(1024.0)) * scales.x - scales.y;
#ifdef CM_BF16
    const uvec2 near = floatBitsToUint(v) + 0x8000u;
    return near.x >> 16 | (near.y & 0xFFFF0000u);
#else
    return packFloat2x16(f16vec2(v));
#endif
}

uvec4 q4_k_elements(uvec4 w, uvec2 beside, uint part, uint ref) {
    const vec2 scales = q4_k_scales(vec2(f16_decode(beside.x), f16_decode(beside.x >> 16)), beside);
    return uvec4(q4_k_pair(w.x, scales), q4_k_pair(w.x >> 4, scales), q4_k_pair(w.x >> 8, scales), q4_k_pair(w.x >> 12, scales));
}
#endif

#ifdef FORMAT_ORDER
uvec4 q4_k_order(uvec4 v) { return v; }
#endif

#ifdef FORMAT_PAIRS
const float Q4_K_PAIR_UNIT = 1.0;

#ifdef CM_BF16
// q4_k_near is q4_k_pair with one instruction that takes the upper halves.
uint q4_k_near(uint w, vec2 scales) {
    const vec2 v = vec2(unpackFloat2x16((w & 0x000F000Fu) | 0x64006400u) - f16vec2(1024.0)) * scales.x - scales.y;
    return linear_near(v);
}
#endif

void q4_k_pairs(uint w, uvec2 beside, uint part, float relative, out uint o[4]) {
#ifdef CM_BF16
    const vec2 scales = q4_k_scales(vec2(unpackFloat2x16(beside.x)), beside);
    [[unroll]] for (uint i = 0u; i < 4u; i++) o[i] = q4_k_near(w >> (4u * i), scales);
    return;
#endif
    const uvec4 pairs = q4_k_elements(uvec4(w), beside, part, 0u);
    [[unroll]] for (uint i = 0u; i < 4u; i++) o[i] = pairs[i];
}
#endif

#ifdef FORMAT_HALVES
uvec4 q4_k_halves(uvec4 w, uvec2 beside, uint part) { return q4_k_elements(w, beside, part, 0u); }
#endif
