// Activations as whole numbers, and codes of GGUF's blocks as bytes that multiply them.
// 256 columns share a power of two, the smallest that none of them exceeds. A column is q * 2^-13
// of it with q = 128*high + low, 0 <= low < 128. A row has N = ceil(k / 1024) units and takes
//   128*N quads of bytes by place(): of 32 columns two high and two low ones, 16 columns each;
//   16*N with sums of q of 16 columns each; N with a scale, f32, of 256 columns each.
#ifndef LIB_WHOLE_GLSL
#define LIB_WHOLE_GLSL

const uint PIECE = 32u; // columns whose sum of products is one whole number

uint units() { return (pc.k + 1023u) / 1024u; }

// LIB_WHOLE_PRODUCTS: with chunks.glsl, of formats that are multiplied so.
#ifdef LIB_WHOLE_PRODUCTS
#extension GL_EXT_integer_dot_product : require

// Formats with a multiplier for 16 columns, and those with a minimum. LIB_WHOLE_FOLDED: codes of
// Q2_K come times theirs, which a byte holds.
#ifdef LIB_WHOLE_FOLDED
const bool FOLDED = FORMAT == Q2_K, HALVED = FORMAT == Q6_K;
#else
const bool FOLDED = false, HALVED = FORMAT == Q6_K || FORMAT == Q2_K;
#endif
const bool LESS = FORMAT == Q2_K || FORMAT == Q4_K;

// x_high, x_low: of 16 columns, half h of a piece.
uvec4 x_high(uint at, uint piece, uint h) { return x.v[at + place(4u * piece + h)]; }
uvec4 x_low(uint at, uint piece, uint h) { return x.v[at + place(4u * piece + 2u + h)]; }

// x_sums: of the two halves of a piece.
ivec2 x_sums(uint at, uint piece) {
    const uint quad = at + units() * 128u + piece / 2u;
    return piece % 2u == 0u ? ivec2(x.v[quad].xy) : ivec2(x.v[quad].zw);
}

float x_scale(uint at, uint piece) { return uintBitsToFloat(x.v[at + units() * 144u + piece / 32u][piece / 8u % 4u]); }

// bytes16: codes of columns 16h to 16h+15 of a chunk, four a word, with their signs.
uvec4 bytes16(uvec4 q[QUADS], uint s, uint h) {
    if (FORMAT == Q8_0) return q[h % QUADS];
    if (FORMAT == Q2_K) {
        const uint w = q[0][h];
        return (uvec4(w, w >> 2, w >> 4, w >> 6) & 0x03030303u) * (FOLDED ? s >> (4u * h) & 15u : 1u);
    }
    if (FORMAT == IQ2_XXS) return uvec4(iq2_xxs_bytes(q[0], 2u * h), iq2_xxs_bytes(q[0], 2u * h + 1u));
    const uvec2 w = h % 2u == 0u ? q[h / 2u % QUADS].xy : q[h / 2u % QUADS].zw;
    const uvec4 low = uvec4(w.x, w.x >> 4, w.y, w.y >> 4) & 0x0F0F0F0Fu;
    if (FORMAT == Q4_K) return low;
    const uint high = q[QUADS - 1u][h]; // Q6_K
    return low | (uvec4(high << 4, high << 2, high, high >> 2) & 0x30303030u);
}

// dot16: sum of codes times q.
int dot16(uvec4 w, uvec4 high, uvec4 low) {
    int a = 0, b = 0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        a += dotPacked4x8EXT(int(w[i]), int(high[i]));
        b += dotPacked4x8EXT(int(w[i]), int(low[i]));
    }
    return a * 128 + b;
}

// by_of: multipliers of columns 16h to 16h+15 of a chunk, of codes times q and of q's sum.
ivec2 by_of(uvec4 q[QUADS], uint s, uint h) {
    if (FORMAT == Q4_K) return ivec2((s & 15u) | (s >> 4 & 0x30u), (s >> 4 & 15u) | (s >> 6 & 0x30u));
    if (FORMAT == Q2_K) return ivec2(s >> (4u * h) & 15u, s >> (16u + 4u * h) & 15u);
    if (FORMAT == Q6_K) return ivec2(int(s << (24u - 8u * h)) >> 24, 0);
    if (FORMAT == IQ2_XXS) return ivec2(2u * (q[0][h / 2u * 2u + 1u] >> 28) + 1u, 0);
    return ivec2(1, 0);
}

// unit_of: what whole numbers of a chunk are multiples of, and those that are taken off.
vec2 unit_of(uint s, uint block) {
    if (FORMAT == Q8_0) return vec2(halves2(s).x, 0.0);
    if (FORMAT == IQ2_XXS) return vec2(halves2(s).x * 0.125, 0.0);
    return halves2(block);
}

// add_piece adds to a sum of a row what a piece gives: dots are sums of codes times q, of HALVED
// for each half; by has the halves' multipliers, sums those of q.
float add_piece(float sum, ivec2 dots, ivec2 by[2], ivec2 sums, vec2 unit, float scale) {
    if (FORMAT == Q6_K) dots -= 32 * sums;
    const int whole = FOLDED ? dots.x : HALVED ? by[0].x * dots.x + by[1].x * dots.y : by[0].x * dots.x;
    float v = unit.x * float(whole);
    if (LESS) {
        const int less = FORMAT == Q2_K ? by[0].y * sums.x + by[1].y * sums.y : by[0].y * (sums.x + sums.y);
        const float off = unit.y * float(less);
        v = fma(unit.x, float(whole), -off);
    }
    return fma(v, scale, sum);
}
#endif
#endif
