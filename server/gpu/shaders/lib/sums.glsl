// Sums of ROWS rows of weights, of MATRICES matrices [experts*n, k], times rows of activations:
//   sum[m][r][t] = sum_c w_m[row0 + r][c] * x[t][c]
// A team of 32 invocations has the rows. Invocation i adds up chunks i, i+32 and on, column by
// column; a chunk's sum takes its scale. Then the invocations' sums are added, fours first. No
// number of tokens, rows or teams changes that order: a token's bits do not depend on the others.
// Declare MATRICES (1 or 2) and before the include, after it a push block pc with
//   n, k, x_quads (of a row of x), side (rows that share a scale of FP8)
// Bindings: 1, 2 the first matrix and its scales; 3, 4 the second, if any; then x, bf16 by place().
// Constants: 2 ROWS; 3 TOKENS, at most; 4 FULL: there are nearly always as many, so that their x is
//   read at once. Else who is not there is not read; 5 ALIGNED: k is a multiple of 128, so that
//   four scales of MXFP4, a word, are of one row.
#ifndef LIB_SUMS_GLSL
#define LIB_SUMS_GLSL
#include "weights.glsl"

layout(constant_id = 2) const uint ROWS = 2u;
layout(constant_id = 3) const uint TOKENS = 1u;
layout(constant_id = 4) const uint FULL = 1u;
layout(constant_id = 5) const uint ALIGNED = 0u;

const uint TEAM = 32u, TEAMS = 4u, PITCH = TEAM * TEAMS + 5u;
const uint PAIRS = MATRICES * ROWS; // of a matrix and a row

layout(std430, set = 0, binding = 1) readonly buffer Codes0 { uvec4 v[]; } codes0;
layout(std430, set = 0, binding = 2) readonly buffer Scales0 { uint v[]; } scales0;
#if MATRICES == 2
layout(std430, set = 0, binding = 3) readonly buffer Codes1 { uvec4 v[]; } codes1;
layout(std430, set = 0, binding = 4) readonly buffer Scales1 { uint v[]; } scales1;
layout(std430, set = 0, binding = 5) readonly buffer X { uvec4 v[]; } x;
#define CODES(m, i) ((m) == 0u ? codes0.v[i] : codes1.v[i])
#define SCALES(m, i) ((m) == 0u ? scales0.v[i] : scales1.v[i])
#else
layout(std430, set = 0, binding = 3) readonly buffer X { uvec4 v[]; } x;
#define CODES(m, i) codes0.v[i]
#define SCALES(m, i) scales0.v[i]
#endif

shared float sums[PAIRS * TOKENS * PITCH];

// Chunk is one of each row.
struct Chunk {
    uvec4 q[PAIRS][QUADS];
    uint scale[PAIRS], block[PAIRS]; // of a part or four; of the block that has these
};

// make_grid brings the grid to shared memory. Every invocation of the workgroup has to call it.
void make_grid() {
    if (FORMAT != IQ2_XXS) return;
    for (uint row = gl_LocalInvocationIndex; row < 256u; row += TEAM * TEAMS)
        grid_s[row] = uvec2(SCALES(0u, 2u * row), SCALES(0u, 2u * row + 1u));
    barrier();
}

// block_rows: of FP8's scales, of one expert.
uint block_rows() { return (pc.n + pc.side - 1u) / pc.side; }

// fetch: chunk c of the rows. Behind the last row the last one is read again.
#define FETCH(expert, row0, c, to) { \
    [[unroll]] for (uint m = 0u; m < MATRICES; m++) { \
        [[unroll]] for (uint r = 0u; r < ROWS; r++) { \
            const uint p = m * ROWS + r, row = min(row0 + r, pc.n - 1u); \
            const uint at = ((expert) * pc.n + row) * (pc.k / COLUMNS) + (c); \
            [[unroll]] for (uint i = 0u; i < QUADS; i++) to.q[p][i] = CODES(m, at * QUADS + i); \
            if (FORMAT == MXFP4) to.scale[p] = ALIGNED == 1u ? SCALES(m, ((expert) * pc.n + row) * (pc.k / 128u) + (c) / 4u) \
                : SCALES(m, at / 4u) >> (8u * (at % 4u)); \
            if (FORMAT == FP8) \
                to.scale[p] = SCALES(m, ((expert) * block_rows() + row / pc.side) * ((pc.k + 127u) / 128u) + (c) / 8u); \
            if (FORMAT == Q8_0) to.scale[p] = SCALES(m, at / 2u) >> (16u * (at % 2u)); \
            if (FORMAT == IQ2_XXS) to.scale[p] = SCALES(m, GRID_WORDS + at / 8u) >> (16u * (at / 4u % 2u)); \
            if (FORMAT == Q2_K || FORMAT == Q6_K) { \
                to.block[p] = SCALES(m, at / 4u * 5u); \
                to.scale[p] = SCALES(m, at / 4u * 5u + 1u + at % 4u); \
            } \
            if (FORMAT == Q4_K) { \
                to.block[p] = SCALES(m, at / 8u * 4u); \
                to.scale[p] = (SCALES(m, at / 8u * 4u + 1u + at / 4u % 2u) >> (8u * (at % 4u)) & 255u) \
                    | (SCALES(m, at / 8u * 4u + 3u) >> (4u * (at % 8u)) & 15u) << 8; \
            } \
        } \
    } }

// scale_of: of a part of chunk c, and its minimum. E8M0 0 is a subnormal of f32.
vec2 scale_of(uvec4 q[QUADS], uint s, uint block, uint c, uint part) {
    if (FORMAT == MXFP4 && ALIGNED == 1u) s >>= 8u * (c % 4u);
    if (FORMAT == MXFP4) return vec2(uintBitsToFloat(max((s & 255u) << 23, 0x00400000u)), 0.0);
    if (FORMAT == FP8) return vec2(uintBitsToFloat(s), 0.0);
    if (FORMAT == Q8_0) return f16_decode(s) * vec2(1.0, 128.0);
    if (FORMAT == IQ2_XXS) return vec2(f16_decode(s) * (0.125 + 0.25 * float(q[0][part % 2u * 2u + 1u] >> 28)), 0.0);
    const vec2 d = vec2(f16_decode(block), f16_decode(block >> 16));
    if (FORMAT == Q4_K) return d * vec2((s & 15u) | (s >> 4 & 0x30u), (s >> 4 & 15u) | (s >> 6 & 0x30u));
    if (FORMAT == Q2_K) return d * vec2(s >> (8u * part) & 15u, s >> (8u * part + 4u) & 15u);
    if (FORMAT == Q6_K) return d.x * float(int(s << (24u - 8u * part)) >> 24) * vec2(1.0, 32.0);
    return vec2(1.0, 0.0);
}

float acc[PAIRS][TOKENS];

// accumulate_part: a part of chunk c.
void accumulate_part(Chunk b, uint c, uint first, uint xrow[TOKENS], uint count) {
    float part[PAIRS][TOKENS], all[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) all[t] = 0.0;
    [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) part[p][t] = 0.0;
    }
    [[unroll]] for (uint i = 0u; i < EIGHTS / PARTS; i++) {
        const uint j = first * (EIGHTS / PARTS) + i, at = place(c * EIGHTS + j);
        uvec4 q[TOKENS];
        if (FULL == 1u) {
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) q[t] = x.v[xrow[t] * pc.x_quads + at];
        }
        float v[PAIRS][8];
        [[unroll]] for (uint p = 0u; p < PAIRS; p++) decode8(b.q[p], j, v[p]);
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            if (t > 0u && t >= count) continue;
            if (FULL == 0u) q[t] = x.v[xrow[t] * pc.x_quads + at];
            float a[8];
            bf16_unpack8(q[t], a);
            if (MINIMA) all[t] += ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
            [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
                [[unroll]] for (uint e = 0u; e < 8u; e++) part[p][t] = fma(v[p][e], a[e], part[p][t]);
            }
        }
    }
    [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
        const vec2 scale = scale_of(b.q[p], b.scale[p], b.block[p], c, first);
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            acc[p][t] = fma(part[p][t] * UNSCALE, scale.x, acc[p][t]);
            if (MINIMA) acc[p][t] = fma(-all[t], scale.y, acc[p][t]);
        }
    }
}

void accumulate(Chunk b, uint c, uint xrow[TOKENS], uint count) {
    [[unroll]] for (uint first = 0u; first < PARTS; first++) accumulate_part(b, c, first, xrow, count);
}

// make_sums leaves what `sum` reads. Every invocation of the workgroup has to call it.
void make_sums(uint expert, uint row0, uint xrow[TOKENS], uint count) {
    const uint tid = gl_LocalInvocationIndex, lane = tid % TEAM, team = tid / TEAM, chunks = pc.k / COLUMNS;
    [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) acc[p][t] = 0.0;
    }
    Chunk now, next;
    FETCH(expert, row0, min(lane, chunks - 1u), now)
    [[dont_unroll]] for (uint c = lane; c < chunks; c += TEAM) { // the next chunk is on its way
        FETCH(expert, row0, min(c + TEAM, chunks - 1u), next)
        accumulate(now, c, xrow, count);
        [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
            [[unroll]] for (uint i = 0u; i < QUADS; i++) now.q[p][i] = next.q[p][i];
            now.scale[p] = next.scale[p];
            now.block[p] = next.block[p];
        }
    }
    [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) sums[(p * TOKENS + t) * PITCH + tid] = acc[p][t];
    }
    barrier();
    for (uint i = lane; i < PAIRS * TOKENS * 8u; i += TEAM) {
        const uint at = i / 8u * PITCH + team * TEAM + i % 8u * 4u;
        precise float four = ((sums[at] + sums[at + 1u]) + sums[at + 2u]) + sums[at + 3u];
        sums[at] = four;
    }
    barrier();
}

// sum: of one of the team's rows and a token.
float sum(uint p, uint t) {
    const uint at = (p * TOKENS + t) * PITCH + gl_LocalInvocationIndex / TEAM * TEAM;
    precise float all = sums[at];
    [[unroll]] for (uint i = 1u; i < 8u; i++) all = all + sums[at + 4u * i];
    return all;
}

#endif
