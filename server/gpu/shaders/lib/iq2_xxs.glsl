// IQ2_XXS: codes stand for eight values each. Included by weights.glsl.
#ifndef LIB_IQ2_XXS_GLSL
#define LIB_IQ2_XXS_GLSL

// A row of the grid is eight values, a byte each, of each four first the first, the third, the
// second and the fourth. They stand in front of the scales, see sums.glsl.
const uint GRID_WORDS = FORMAT == IQ2_XXS ? 512u : 0u;
shared uvec2 grid_s[FORMAT == IQ2_XXS ? 256u : 1u];

// iq2_xxs_2: values 2i and 2i+1 of a row, negated where bits 2i and 2i+16 of signs say so.
vec2 iq2_xxs_2(uint pair, uint signs, uint i) {
    const uint minus = (signs << (15u - 2u * i)) & 0x80008000u;
    if (HALVES == 1u) return unpackHalf2x16(pair | minus);
    const vec2 v = whole(pair);
    return vec2((minus & 0x8000u) != 0u ? -v.x : v.x, minus >> 31 != 0u ? -v.y : v.y);
}

// iq2_xxs_8: a word has four rows of the grid; the next has seven bits of signs for
// each, and an eighth follows: it makes the number of ones even.
void iq2_xxs_8(uint rows, uint signs, uint j, out float v[8]) {
    const uvec2 g = grid_s[rows >> (8u * j) & 0xFFu];
    uint s = signs >> (7u * j) & 127u;
    s |= bitCount(s) << 7; // bits from the ninth on are shifted away, or masked
    s |= s << 15;
    const vec2 a = iq2_xxs_2(g.x & 0x00FF00FFu, s, 0u), b = iq2_xxs_2(g.x >> 8 & 0x00FF00FFu, s, 1u);
    const vec2 c = iq2_xxs_2(g.y & 0x00FF00FFu, s, 2u), d = iq2_xxs_2(g.y >> 8 & 0x00FF00FFu, s, 3u);
    v = float[8](a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y);
}

#endif
