// IQ2_XXS: codes stand for eight values each. Included by weights.glsl.
#ifndef LIB_IQ2_XXS_GLSL
#define LIB_IQ2_XXS_GLSL

// A row of the grid is eight values, a byte each, of each four first the first, the third, the
// second and the fourth. They stand in front of the scales, see sums.glsl.
const uint GRID_WORDS = FORMAT == IQ2_XXS ? 512u : 0u;
shared uvec2 grid_s[FORMAT == IQ2_XXS ? 256u : 1u];

// iq2_xxs_signs: of four rows, from the word after theirs. As blocks.go leaves it, bits 4i+j and
// 16+4i+j are those of values 2i and 2i+1 of row j. A row's last sign makes the number of ones
// even; the scale stands in its place.
uint iq2_xxs_signs(uint word) {
    const uint signs = word & 0x0FFFFFFFu;
    uint odd = signs ^ signs >> 16;
    odd ^= odd >> 8;
    odd ^= odd >> 4;
    return signs | odd << 28;
}

// iq2_xxs_2: values 2i and 2i+1 of row j, with their signs.
vec2 iq2_xxs_2(uint pair, uint signs, uint i, uint j) {
    const uint minus = (signs << (15u - 4u * i - j)) & 0x80008000u;
    if (HALVES == 1u) return unpackHalf2x16(pair | minus);
    const vec2 v = whole(pair);
    return vec2((minus & 0x8000u) != 0u ? -v.x : v.x, minus >> 31 != 0u ? -v.y : v.y);
}

// iq2_xxs_8: row j of the four that a word has.
void iq2_xxs_8(uint rows, uint signs, uint j, out float v[8]) {
    const uvec2 g = grid_s[rows >> (8u * j) & 0xFFu];
    const uint s = iq2_xxs_signs(signs);
    const vec2 a = iq2_xxs_2(g.x & 0x00FF00FFu, s, 0u, j), b = iq2_xxs_2(g.x >> 8 & 0x00FF00FFu, s, 1u, j);
    const vec2 c = iq2_xxs_2(g.y & 0x00FF00FFu, s, 2u, j), d = iq2_xxs_2(g.y >> 8 & 0x00FF00FFu, s, 3u, j);
    v = float[8](a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y);
}

#endif
