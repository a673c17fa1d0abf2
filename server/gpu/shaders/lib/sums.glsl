// Sums of ROWS rows of weights, of MATRICES matrices [experts*n, k], times rows of activations:
//   sum[m][r][t] = sum_c w_m[row0 + r][c] * x[t][c]
// A team of 32 invocations has the rows. Invocation i adds up chunks i, i+32 and on, column by
// column or by pieces of whole numbers, whose sums take their scales. Then the invocations' sums
// are added, fours first. No number of tokens, rows or teams changes that order: a token's bits do
// not depend on the others.
// Declarations, bindings and constants are those of chunks.glsl, and 2 ROWS; 3 TOKENS, at most;
//   4 FULL: there are nearly always as many, so that their x is read at once. Else who is not
//   there is not read.
#ifndef LIB_SUMS_GLSL
#define LIB_SUMS_GLSL
#include "chunks.glsl"
#define LIB_WHOLE_PRODUCTS
#include "whole.glsl"

layout(constant_id = 2) const uint ROWS = 2u;
layout(constant_id = 3) const uint TOKENS = 1u;
layout(constant_id = 4) const uint FULL = 1u;

const uint TEAM = 32u, TEAMS = 4u, PITCH = TEAM * TEAMS + 5u;
const uint PAIRS = MATRICES * ROWS; // of a matrix and a row

shared float sums[PAIRS * TOKENS * PITCH];

// Chunk is one of each row.
struct Chunk {
    uvec4 q[PAIRS][QUADS];
    uint scale[PAIRS], block[PAIRS]; // of a part or four; of the block that has these
};

// FETCH_ALL: chunk c of the rows. Behind the last row the last one is read again.
#define FETCH_ALL(expert, row0, c, to) { \
    [[unroll]] for (uint m = 0u; m < MATRICES; m++) { \
        [[unroll]] for (uint r = 0u; r < ROWS; r++) { \
            const uint p = m * ROWS + r, row = min(row0 + r, pc.n - 1u); \
            FETCH(m, expert, row, c, to.q[p], to.scale[p], to.block[p]) \
        } \
    } }

float acc[PAIRS][TOKENS];

void accumulate(Chunk b, uint c, uint xrow[TOKENS], uint count) {
    float part[PAIRS][TOKENS];
    [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) part[p][t] = 0.0;
    }
    [[unroll]] for (uint j = 0u; j < EIGHTS; j++) {
        const uint at = place(c * EIGHTS + j);
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
            [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
                [[unroll]] for (uint e = 0u; e < 8u; e++) part[p][t] = fma(v[p][e], a[e], part[p][t]);
            }
        }
    }
    [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
        const float scale = scale_of(b.q[p], b.scale[p], b.block[p], c, 0u).x;
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) acc[p][t] = fma(part[p][t] * UNSCALE, scale, acc[p][t]);
    }
}

// accumulate_whole: chunk c of a format that is multiplied by whole numbers.
void accumulate_whole(Chunk b, uint c, uint xrow[TOKENS], uint count) {
    [[unroll]] for (uint s = 0u; s < COLUMNS / PIECE; s++) {
        const uint piece = c * (COLUMNS / PIECE) + s;
        ivec2 dots[PAIRS][TOKENS];
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            uvec4 w[PAIRS];
            [[unroll]] for (uint p = 0u; p < PAIRS; p++) w[p] = bytes16(b.q[p], b.scale[p], 2u * s + h);
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                if (t > 0u && t >= count) continue;
                const uvec4 high = x_high(xrow[t] * pc.x_quads, piece, h), low = x_low(xrow[t] * pc.x_quads, piece, h);
                [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
                    const int sum = dot16(w[p], high, low);
                    dots[p][t] = h == 0u ? ivec2(sum, 0) : HALVED ? ivec2(dots[p][t].x, sum) : ivec2(dots[p][t].x + sum, 0);
                }
            }
        }
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            if (t > 0u && t >= count) continue;
            const float scale = x_scale(xrow[t] * pc.x_quads, piece);
            const ivec2 sums = HALVED || LESS ? x_sums(xrow[t] * pc.x_quads, piece) : ivec2(0);
            [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
                const ivec2 by[2] = ivec2[2](by_of(b.q[p], b.scale[p], 2u * s), by_of(b.q[p], b.scale[p], 2u * s + 1u));
                acc[p][t] = add_piece(acc[p][t], dots[p][t], by, sums, unit_of(b.scale[p], b.block[p]), scale);
            }
        }
    }
}

// ADD: chunk c of the rows.
#define ADD(chunk, c) { \
    if (WHOLE) { \
        accumulate_whole(chunk, c, xrow, count); \
    } else { \
        accumulate(chunk, c, xrow, count); \
    } }

// make_sums leaves what `sum` reads. Every invocation of the workgroup has to call it.
void make_sums(uint expert, uint row0, uint xrow[TOKENS], uint count) {
    const uint tid = gl_LocalInvocationIndex, lane = tid % TEAM, team = tid / TEAM, chunks = pc.k / COLUMNS;
    [[unroll]] for (uint p = 0u; p < PAIRS; p++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) acc[p][t] = 0.0;
    }
    uint c = lane;
    if (PAIRS * TOKENS == 1u) { // little is on its way otherwise
        [[dont_unroll]] for (; c + 3u * TEAM < chunks; c += 4u * TEAM) {
            Chunk four[4];
            [[unroll]] for (uint i = 0u; i < 4u; i++) FETCH_ALL(expert, row0, c + i * TEAM, four[i])
            [[unroll]] for (uint i = 0u; i < 4u; i++) ADD(four[i], c + i * TEAM)
        }
    }
    Chunk now, next;
    if (!BY64) FETCH_ALL(expert, row0, min(c, chunks - 1u), now)
    [[dont_unroll]] for (; c < chunks; c += TEAM) {
        if (BY64) { // a chunk takes long: other teams have theirs on the way meanwhile
            FETCH_ALL(expert, row0, c, now)
            ADD(now, c)
            continue;
        }
        FETCH_ALL(expert, row0, min(c + TEAM, chunks - 1u), next)
        ADD(now, c)
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
