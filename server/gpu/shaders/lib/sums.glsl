// Sums of ROWS rows of weights, of MATRICES matrices [experts*n, k], times rows of activations:
//   sum[m][r][t] = sum_c w_m[row0 + r][c] * x[t][c]
// A team of 32 invocations has the rows. Invocation i adds up chunks i, i+32 and on, column by
// column; a chunk's sum takes its scale. Then the invocations' sums are added, fours first. No
// number of tokens, rows or teams changes that order: a token's bits do not depend on the others.
// Declarations, bindings and constants are those of chunks.glsl, and 2 ROWS; 3 TOKENS, at most;
//   4 FULL: there are nearly always as many, so that their x is read at once. Else who is not
//   there is not read.
#ifndef LIB_SUMS_GLSL
#define LIB_SUMS_GLSL
#include "chunks.glsl"

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
    FETCH_ALL(expert, row0, min(lane, chunks - 1u), now)
    [[dont_unroll]] for (uint c = lane; c < chunks; c += TEAM) { // the next chunk is on its way
        FETCH_ALL(expert, row0, min(c + TEAM, chunks - 1u), next)
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
