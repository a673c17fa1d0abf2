// bf16: numbers as they are, without scales. See formats.glsl.
#ifdef FORMAT_F32
const float BF16_UNIT = 1.0;

void bf16_f32(uvec4 w, uvec2 beside, out vec4 a, out vec4 b) {
    a = vec4(bf16_unpack2(w.x), bf16_unpack2(w.y));
    b = vec4(bf16_unpack2(w.z), bf16_unpack2(w.w));
}
#endif

#ifdef FORMAT_ELEMENTS
const float BF16_ELEMENT_UNIT = 1.0;

uvec4 bf16_elements(uvec4 w, uvec2 beside, uint part, uint ref) {
    return uvec4(cm_from_bf16(w.x), cm_from_bf16(w.y), cm_from_bf16(w.z), cm_from_bf16(w.w));
}
#endif

#ifdef FORMAT_ORDER
uvec4 bf16_order(uvec4 v) { return v; }
#endif

#ifdef FORMAT_PAIRS
const float BF16_PAIR_UNIT = 1.0;

void bf16_pairs(uint w, uvec2 beside, uint part, float relative, out uint o[4]) { o[0] = cm_from_bf16(w); }
#endif

#ifdef FORMAT_HALVES
// bf16_half2: two numbers; beyond +-65504 they count as that.
uint bf16_half2(uint pair) {
    const vec2 x = bf16_unpack2(pair);
    return packFloat2x16(f16vec2(mix(x, clamp(x, vec2(-65504.0), vec2(65504.0)), greaterThan(abs(x), vec2(65504.0)))));
}

uvec4 bf16_halves(uvec4 w, uvec2 beside, uint part) {
    return uvec4(bf16_half2(w.x), bf16_half2(w.y), bf16_half2(w.z), bf16_half2(w.w));
}
#endif
