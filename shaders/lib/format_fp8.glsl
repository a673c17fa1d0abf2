// FP8: E4M3 codes, whose scales rows of a tile share, or a row has one. See formats.glsl.
//
// As binary16 numbers codes come 2^8 times too small, by moving their bits: E4M3's exponent has
// bias 7, binary16's 15, and both have subnormals. NaN codes come out as 480, as they lie behind
// 448.
#ifdef FORMAT_F32
#ifdef HALF_CODES
const float FP8_UNIT = 256.0;

vec4 fp8_f32x4(uint w) {
    const uint v = w << 8;
    const vec2 even = linear_halves((v & 0x80008000u) | ((v >> 1) & 0x3F803F80u));
    const vec2 odd = linear_halves((w & 0x80008000u) | ((w >> 1) & 0x3F803F80u));
    return vec4(even.x, odd.x, even.y, odd.y);
}
#else
const float FP8_UNIT = LIFTED_E4M3;

vec4 fp8_f32x4(uint w) { return lifted_e4m3x4(w); }
#endif

void fp8_f32(uvec4 w, uvec2 beside, out vec4 a, out vec4 b) {
    a = fp8_f32x4(w.x);
    b = fp8_f32x4(w.y);
}
#endif

#ifdef FORMAT_ELEMENTS
const float FP8_ELEMENT_UNIT = 1.0;

// fp8_place: the codes in bytes 1 and 3 of w as binary16 numbers times 2^-8.
uint fp8_place(uint w) { return (w & 0x80008000u) | ((w >> 1) & 0x3F803F80u); }

// FP8_SCALED: eight codes times 2^-8 times a factor. A macro, since few functions are to be under
// way at a time.
#define FP8_SCALED(w, factor) \
    uvec4(linear_scaled(fp8_place((w).x << 8), fp8_place((w).x), factor), \
          linear_scaled(fp8_place((w).y << 8), fp8_place((w).y), factor))

// fp8_elements: beside.x has the f32 bits of the block's scale. Only its power of two is multiplied
// here; a fraction is the sums'.
uvec4 fp8_elements(uvec4 w, uvec2 beside, uint part, uint ref) {
    const float power = uintBitsToFloat(beside.x & 0xFF800000u);
    const float factor = (WEIGHT_REF ? power * uintBitsToFloat(0x7F000000u - ref) : power) * 256.0;
    return FP8_SCALED(w, factor);
}
#endif

#ifdef FORMAT_ORDER
uvec4 fp8_order(uvec4 v) { return uvec4(lows(v.x, v.y), highs(v.x, v.y), lows(v.z, v.w), highs(v.z, v.w)); }
#endif

#ifdef FORMAT_PAIRS
// A block's scale of SMALL_BLOCKS comes 2^15 times too large.
const float FP8_PAIR_UNIT = SMALL_BLOCKS ? 1.0 / 128.0 : 256.0;

void fp8_pairs(uint w, uvec2 beside, uint part, float relative, out uint o[4]) {
    if (SMALL_BLOCKS) {
        o[0] = scaled_element(fp8_place(w << 8), relative);
        o[1] = scaled_element(fp8_place(w), relative);
    } else {
        o[0] = element(fp8_place(w << 8));
        o[1] = element(fp8_place(w));
    }
}
#endif

#ifdef FORMAT_HALVES
uvec4 fp8_halves(uvec4 w, uvec2 beside, uint part) { // scales are their sums'
    const float16_t up = float16_t(256.0);
    return uvec4(times(fp8_place(w.x << 8), up), times(fp8_place(w.x), up), times(fp8_place(w.y << 8), up), times(fp8_place(w.y), up));
}
#endif
