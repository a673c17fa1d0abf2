// NVFP4: E2M1 codes, two a byte, the even one low, with an E4M3 scale for each 16 numbers of a row
// and an f32 for the row. See formats.glsl.
//
// As binary16 numbers codes come 2^14 times too small, by moving their bits: E2M1's exponent has
// bias 1, binary16's 15, and both have subnormals.
#ifdef FORMAT_F32
#ifdef HALF_CODES
const float NVFP4_UNIT = 16384.0;

void nvfp4_f32x8(uint w, out vec4 a, out vec4 b) {
    const vec2 n0 = linear_halves(((w << 12) & 0x80008000u) | ((w << 9) & 0x0E000E00u)); // codes 0 and 4
    const vec2 n1 = linear_halves(((w << 8) & 0x80008000u) | ((w << 5) & 0x0E000E00u));
    const vec2 n2 = linear_halves(((w << 4) & 0x80008000u) | ((w << 1) & 0x0E000E00u));
    const vec2 n3 = linear_halves((w & 0x80008000u) | ((w >> 3) & 0x0E000E00u));
    a = vec4(n0.x, n1.x, n2.x, n3.x);
    b = vec4(n0.y, n1.y, n2.y, n3.y);
}
#else
const float NVFP4_UNIT = LIFTED_E2M1;

void nvfp4_f32x8(uint w, out vec4 a, out vec4 b) {
    a = lifted_e2m1x4(w);
    b = lifted_e2m1x4(w >> 16);
}
#endif

void nvfp4_f32(uvec4 w, uvec2 beside, out vec4 a, out vec4 b) { nvfp4_f32x8(w.x, a, b); }

float nvfp4_factor(uvec2 beside, uint part) { return e4m3_decode(beside.x >> (8u * part)); }
#endif

#ifdef FORMAT_BESIDE
// nvfp4_beside: the code of the scale at k, a multiple of 8; the next one stands in the byte above.
uvec2 nvfp4_beside(uint row, uint k) {
    const uint i = row * (ROW_LENGTH / 16u) + k / 16u;
    return uvec2(SCALE_WORD(i >> 2) >> ((i & 3u) * 8u), 0u);
}
#endif

#ifdef FORMAT_ELEMENTS
#ifdef CM_BF16
const float NVFP4_ELEMENT_UNIT = 1.0;
#else
const float NVFP4_ELEMENT_UNIT = 128.0;
#endif

uvec4 nvfp4_elements(uvec4 w, uvec2 beside, uint part, uint ref) { // exact
    const float factor = e4m3_decode(beside.x >> (part * 8u)) * (16384.0 / NVFP4_ELEMENT_UNIT);
    const uint n0 = ((w.x << 12) & 0x80008000u) | ((w.x << 9) & 0x0E000E00u); // codes 0 and 4
    const uint n1 = ((w.x << 8) & 0x80008000u) | ((w.x << 5) & 0x0E000E00u);
    const uint n2 = ((w.x << 4) & 0x80008000u) | ((w.x << 1) & 0x0E000E00u);
    const uint n3 = (w.x & 0x80008000u) | ((w.x >> 3) & 0x0E000E00u);
    const uvec2 a = linear_scaled(n0, n1, factor), b = linear_scaled(n2, n3, factor);
    return uvec4(a.x, b.x, a.y, b.y);
}
#endif

#ifdef FORMAT_ORDER
uvec4 nvfp4_order(uvec4 v) { return uvec4(lows(v.x, v.z), highs(v.x, v.z), lows(v.y, v.w), highs(v.y, v.w)); }
#endif

#ifdef FORMAT_PAIRS
const float NVFP4_PAIR_UNIT = 128.0; // a scale comes 2^7 times too large

void nvfp4_pairs(uint w, uvec2 beside, uint part, float relative, out uint o[4]) {
    const f16vec2 scale = unpackFloat2x16((beside.x >> (part * 8u) & 0x7Fu) * 0x00800080u) * f16vec2(32768.0);
    const uint a = ((w << 12) & 0x80008000u) | ((w << 9) & 0x0E000E00u);
    const uint b = ((w << 8) & 0x80008000u) | ((w << 5) & 0x0E000E00u);
    const uint c = ((w << 4) & 0x80008000u) | ((w << 1) & 0x0E000E00u);
    const uint d = (w & 0x80008000u) | ((w >> 3) & 0x0E000E00u);
    o[0] = element(packFloat2x16(unpackFloat2x16(a) * scale));
    o[1] = element(packFloat2x16(unpackFloat2x16(b) * scale));
    o[2] = element(packFloat2x16(unpackFloat2x16(c) * scale));
    o[3] = element(packFloat2x16(unpackFloat2x16(d) * scale));
}
#endif

#ifdef FORMAT_HALVES
// nvfp4_place: the codes at bits 12 and 28 of w as binary16 numbers times 2^-14.
uint nvfp4_place(uint w) { return (w & 0x80008000u) | ((w >> 3) & 0x0E000E00u); }

uvec4 nvfp4_halves(uvec4 w, uvec2 beside, uint part) {
    const float16_t scale = float16_t(e4m3_decode(beside.x >> (part * 8u)) * (16384.0 / NVFP4_ELEMENT_UNIT));
    return uvec4(times(nvfp4_place(w.x << 12), scale), times(nvfp4_place(w.x << 8), scale),
                 times(nvfp4_place(w.x << 4), scale), times(nvfp4_place(w.x), scale));
}
#endif
