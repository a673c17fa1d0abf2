// IQ2_XXS: codes stand for eight values each. Included by weights.glsl.
#ifndef LIB_IQ2_XXS_GLSL
#define LIB_IQ2_XXS_GLSL

// A row of the grid is eight values, a byte each. They stand in front of the scales.
const uint GRID_WORDS = FORMAT == IQ2_XXS ? 512u : 0u;
shared uvec2 grid_s[FORMAT == IQ2_XXS ? 256u : 1u];

// iq2_xxs_signs: of four rows, from the word after theirs. As unpack.comp leaves it, bit 8b+4h+j is
// that of value 4h+b of row j. A row's last sign makes the number of ones even; the scale stands in
// its place.
uint iq2_xxs_signs(uint word) {
    const uint signs = word & 0x0FFFFFFFu;
    uint odd = signs ^ signs >> 16;
    odd ^= odd >> 8;
    odd ^= odd >> 4;
    return signs | odd << 28;
}

// iq2_xxs_bytes: row i of the eight that a quad has, with signs.
uvec2 iq2_xxs_bytes(uvec4 q, uint i) {
    const uint rows = q[i / 4u * 2u], signs = iq2_xxs_signs(q[i / 4u * 2u + 1u]), j = i % 4u;
    const uvec2 minus = uvec2(signs >> j, signs >> (4u + j)) & 0x01010101u;
    return (grid_s[rows >> (8u * j) & 0xFFu] ^ (minus * 255u)) + minus; // no value is 0
}

// iq2_xxs_2: values 4h and 4h+2 of row j, with their signs.
vec2 iq2_xxs_2(uint pair, uint signs, uint h, uint j) {
    const uint minus = (signs << (15u - 4u * h - j)) & 0x80008000u;
    if (HALVES == 1u) return unpackHalf2x16(pair | minus);
    const vec2 v = whole(pair);
    return vec2((minus & 0x8000u) != 0u ? -v.x : v.x, minus >> 31 != 0u ? -v.y : v.y);
}

// iq2_xxs_8: row j of the four that a word has.
void iq2_xxs_8(uint rows, uint signs, uint j, out float v[8]) {
    const uvec2 g = grid_s[rows >> (8u * j) & 0xFFu];
    const uint s = iq2_xxs_signs(signs);
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        const vec2 even = iq2_xxs_2(g[h] & 0x00FF00FFu, s, h, j), odd = iq2_xxs_2(g[h] >> 8 & 0x00FF00FFu, s >> 8, h, j);
        v[4u * h] = even.x;
        v[4u * h + 1u] = odd.x;
        v[4u * h + 2u] = even.y;
        v[4u * h + 3u] = odd.y;
    }
}

#endif
