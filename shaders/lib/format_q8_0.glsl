// Q8_0: whole numbers of 8 bits with an f16 scale for each 32 of a row, [G*N, K/32] f16, and a
// power of two for the row, so that no element of f16 is too large. See formats.glsl.
//
// A byte b, its highest bit turned, becomes the number 2^23 + 128 + b, or 2^10 + 128 + b of halves,
// as the low bits of one.
#if !defined(Q8_0_RAISED) && (defined(HALF_CODES) || defined(FORMAT_ELEMENTS))
#define Q8_0_RAISED
// q8_0_raised: 1152 more than bytes 0 and 2 of w.
f16vec2 q8_0_raised(uint w) { return unpackFloat2x16((w & 0x00FF00FFu) ^ 0x64806480u); }
#endif

#ifdef FORMAT_F32
const float Q8_0_UNIT = 1.0;

vec4 q8_0_f32x4(uint w) {
#ifdef HALF_CODES
    const f16vec2 even = q8_0_raised(w) - f16vec2(1152.0), odd = q8_0_raised(w >> 8) - f16vec2(1152.0);
    return vec4(even.x, odd.x, even.y, odd.y);
#else
    const uint b = w ^ 0x80808080u;
    return uintBitsToFloat(uvec4(b & 0xFFu, b >> 8 & 0xFFu, b >> 16 & 0xFFu, b >> 24) | 0x4B000000u) - 8388736.0;
#endif
}

void q8_0_f32(uvec4 w, uvec2 beside, out vec4 a, out vec4 b) {
    a = q8_0_f32x4(w.x);
    b = q8_0_f32x4(w.y);
}

float q8_0_factor(uvec2 beside, uint part) { return f16_convert(beside.x); }
#endif

#ifdef FORMAT_BESIDE
uvec2 q8_0_beside(uint row, uint k) {
    const uint i = row * (ROW_LENGTH / 32u) + k / 32u;
    return uvec2(SCALE_WORD(i >> 1) >> ((i & 1u) * 16u), 0u);
}
#endif

#ifdef FORMAT_ELEMENTS
const float Q8_0_ELEMENT_UNIT = 1.0;

// q8_0_pair: bytes 0 and 2 of w times the scale, rounded to elements.
uint q8_0_pair(uint w, uint scale) {
    const uint b = (w ^ 0x00800080u) & 0x00FF00FFu;
#ifdef CM_BF16
    const vec2 v = (uintBitsToFloat(uvec2(b & 0xFFu, b >> 16) | 0x4B000000u) - 8388736.0) * f16_decode(scale);
    const uvec2 near = floatBitsToUint(v) + 0x8000u;
    return near.x >> 16 | (near.y & 0xFFFF0000u);
#else
    const f16vec2 v = unpackFloat2x16(b | 0x64006400u) - f16vec2(1152.0);
    return packFloat2x16(v * unpackFloat2x16((scale & 0xFFFFu) * 0x00010001u));
#endif
}

uvec4 q8_0_elements(uvec4 w, uvec2 beside, uint part, uint ref) {
    const uvec2 even = uvec2(q8_0_pair(w.x, beside.x), q8_0_pair(w.y, beside.x));
    const uvec2 odd = uvec2(q8_0_pair(w.x >> 8, beside.x), q8_0_pair(w.y >> 8, beside.x));
    const uvec2 low = (even & 0xFFFFu) | odd << 16, high = even >> 16 | (odd & 0xFFFF0000u);
    return uvec4(low.x, high.x, low.y, high.y);
}
#endif

#ifdef FORMAT_ORDER
uvec4 q8_0_order(uvec4 v) { return uvec4(lows(v.x, v.y), highs(v.x, v.y), lows(v.z, v.w), highs(v.z, v.w)); }
#endif

#ifdef FORMAT_PAIRS
const float Q8_0_PAIR_UNIT = 1.0;

void q8_0_pairs(uint w, uvec2 beside, uint part, float relative, out uint o[4]) {
#ifdef CM_BF16
    const float scale = f16_convert(beside.x), least = scale * -1152.0; // 22 bits of a product: all is exact
    o[0] = linear_near(vec2(q8_0_raised(w)) * scale + least);
    o[1] = linear_near(vec2(q8_0_raised(w >> 8)) * scale + least);
#else
    o[0] = q8_0_pair(w, beside.x);
    o[1] = q8_0_pair(w >> 8, beside.x);
#endif
}
#endif

#ifdef FORMAT_HALVES
uvec4 q8_0_halves(uvec4 w, uvec2 beside, uint part) {
    return uvec4(q8_0_pair(w.x, beside.x), q8_0_pair(w.x >> 8, beside.x), q8_0_pair(w.y, beside.x), q8_0_pair(w.y >> 8, beside.x));
}
#endif
