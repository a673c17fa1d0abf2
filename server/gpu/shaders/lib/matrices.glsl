// Sums of 128 rows of weights, ROWS of each matrix, times TOKENS rows of activations, by products
// of cooperative matrices with f16 elements and f32 sums:
//   sum[m][r][t] = LIFT * sum_c w_m[row0 + r][c] * x[t][c]
// Weights are decoded once for all tokens, to shared memory, 64 columns at a time: 16 of each of
// four chunks, which four invocations read side by side. x has the same columns.
//
// f16 keeps 11 bits of a weight that lies in 2^-20 .. 1023 by its magnitude. Beyond, a scale counts
// as the largest for which codes stay there; below, weights come in steps of 2^-30.
//
// Declarations, bindings and constants are those of chunks.glsl, and 2 SUBGROUP; 3 TOKENS, up to
//   128; 4 TEAMS: subgroups that share out the rows, the others share out tokens; 6 to 8 M, N, K of
//   a product. A chunk has 16 columns at least.
#ifndef LIB_MATRICES_GLSL
#define LIB_MATRICES_GLSL
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define CM_ELEMENT float16_t
#include "chunks.glsl"

layout(constant_id = 2) const uint SUBGROUP = 32u;
layout(constant_id = 3) const uint TOKENS = 32u;
layout(constant_id = 4) const uint TEAMS = 4u;
layout(constant_id = 6) const uint CM_M = 16u;
layout(constant_id = 7) const uint CM_N = 16u;
layout(constant_id = 8) const uint CM_K = 16u;

const uint ROWS = 128u / MATRICES;
const uint WM = ROWS / TEAMS;                       // rows of each matrix that a subgroup has
const uint WN = TOKENS / (128u / SUBGROUP / TEAMS); // tokens
const uint M_TILES = WM / CM_M, N_TILES = WN / CM_N;
const uint STAGES = COLUMNS / 16u; // of four chunks
const uint PITCH = 9u; // quads of a row of 64 columns; a spare one spreads rows over banks
const uint X_EACH = TOKENS / 16u;
const uint OUT_PITCH = WM / 4u + 1u;
const uint OUT_QUADS = 128u / SUBGROUP * CM_N * OUT_PITCH, TILE_QUADS = (128u + TOKENS) * PITCH;
const float LIFT = 64.0;

shared uvec4 tile_s[TILE_QUADS > OUT_QUADS ? TILE_QUADS : OUT_QUADS];
shared uint row_s[TOKENS]; // rows of the item

CM_C acc[MATRICES][M_TILES][N_TILES];

// Block holds what an invocation decodes of four chunks: one of them, of rows 32 apart.
struct Block {
    uvec4 q[4][QUADS];
    uint scale[4], block[4];
};

void fetch(uint expert, uint row0, uint b, out Block to) {
    const uint tid = gl_LocalInvocationIndex, c = min(b * 4u + tid % 4u, pc.k / COLUMNS - 1u);
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        const uint row = min(row0 + (j * 32u + tid / 4u) % ROWS, pc.n - 1u);
        to.scale[j] = 0u;
        to.block[j] = 0u;
        FETCH(j * MATRICES / 4u, expert, row, c, to.q[j], to.scale[j], to.block[j])
    }
}

// most: of a scale and of what codes have in common, lifted, so that numbers stay within f16.
vec2 most() {
    const float code = FORMAT == FP8 ? 448.0 : FORMAT == Q8_0 ? 255.0 : FORMAT == Q6_K ? 63.0 : FORMAT == IQ2_XXS ? 43.0
        : FORMAT == MXFP4 ? 6.0 : 15.0;
    return vec2((MINIMA ? 32752.0 : 65504.0) / code, 32752.0);
}

// fetch_x: eights of columns of tokens, of a stage.
void fetch_x(uint b, uint s, out uvec4 to[X_EACH]) {
    const uint tid = gl_LocalInvocationIndex;
    const uint eight = min((b * 4u + tid % 8u / 2u) * EIGHTS + s * 2u + tid % 2u, pc.k / 8u - 1u);
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) to[i] = x.v[X_ROW(row_s[i * 16u + tid / 8u]) * pc.x_quads + place(eight)];
}

// half2: a pair of bf16 numbers as f16. Beyond +-65504 they are that; a NaN stays one.
uint half2(uint pair) {
    const vec2 a = bf16_unpack2(pair);
    return packHalf2x16(mix(a, sign(a) * 65504.0, greaterThan(abs(a), vec2(65504.0))));
}

// keep brings a stage to shared memory. Behind the last column there are zeros.
void keep(Block from, uvec4 a[X_EACH], uint b, uint s) {
    const uint tid = gl_LocalInvocationIndex, c = b * 4u + tid % 4u;
    const bool there = c < pc.k / COLUMNS, x_there = b * 4u + tid % 8u / 2u < pc.k / COLUMNS;
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        const vec2 scale = clamp(scale_of(from.q[j], from.scale[j], from.block[j], c, s * 16u / (COLUMNS / PARTS)) * LIFT,
            -most(), most());
        [[unroll]] for (uint e = 0u; e < 2u; e++) {
            float v[8];
            decode8(from.q[j], s * 2u + e, v);
            [[unroll]] for (uint i = 0u; i < 8u; i++) v[i] = MINIMA ? fma(v[i], scale.x * UNSCALE, -scale.y) : v[i] * (scale.x * UNSCALE);
            const uvec4 w = uvec4(packHalf2x16(vec2(v[0], v[1])), packHalf2x16(vec2(v[2], v[3])),
                packHalf2x16(vec2(v[4], v[5])), packHalf2x16(vec2(v[6], v[7])));
            tile_s[(j * 32u + tid / 4u) * PITCH + tid % 4u * 2u + e] = there ? w : uvec4(0u);
        }
    }
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
#if MATRICES == 2
        a[i] = uvec4(half2(a[i].x), half2(a[i].y), half2(a[i].z), half2(a[i].w));
#endif
        tile_s[(128u + i * 16u + tid / 8u) * PITCH + tid % 8u] = x_there ? a[i] : uvec4(0u);
    }
}

uint rows_at() { return gl_SubgroupID % TEAMS * WM; }   // first of the subgroup's rows
uint tokens_at() { return gl_SubgroupID / TEAMS * WN; } // and tokens

// multiply: a stage. There are count tokens.
void multiply(uint count) {
    [[unroll]] for (uint k = 0u; k < 64u / CM_K; k++) {
        CM_A a[MATRICES][M_TILES];
        [[unroll]] for (uint m = 0u; m < MATRICES; m++) {
            [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
                coopMatLoad(a[m][i], tile_s, (m * ROWS + rows_at() + i * CM_M) * PITCH + k * CM_K / 8u, PITCH,
                    gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        [[unroll]] for (uint n = 0u; n < N_TILES; n++) {
            if (n > 0u && tokens_at() + n * CM_N >= count) continue;
            CM_B b; // rows of the tile are its columns
            coopMatLoad(b, tile_s, (128u + tokens_at() + n * CM_N) * PITCH + k * CM_K / 8u, PITCH,
                gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint m = 0u; m < MATRICES; m++) {
                [[unroll]] for (uint i = 0u; i < M_TILES; i++) acc[m][i][n] = coopMatMulAdd(a[m][i], b, acc[m][i][n]);
            }
        }
    }
}

// make_sums leaves acc. Every invocation of the workgroup has to call it, after row_s was written.
void make_sums(uint expert, uint row0, uint count) {
    const uint blocks = (pc.k / COLUMNS + 3u) / 4u;
    [[unroll]] for (uint m = 0u; m < MATRICES; m++) {
        [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
            [[unroll]] for (uint n = 0u; n < N_TILES; n++) acc[m][i][n] = CM_C(0.0);
        }
    }
    Block now, next;
    uvec4 a[X_EACH];
    fetch(expert, row0, 0u, now);
    barrier();
    fetch_x(0u, 0u, a);
    [[dont_unroll]] for (uint b = 0u; b < blocks; b++) {
        fetch(expert, row0, min(b + 1u, blocks - 1u), next); // on its way meanwhile
        [[unroll]] for (uint s = 0u; s < STAGES; s++) {
            barrier();
            keep(now, a, b, s);
            barrier();
            if (s + 1u < STAGES) {
                fetch_x(b, s + 1u, a);
            } else {
                fetch_x(min(b + 1u, blocks - 1u), 0u, a);
            }
            multiply(count);
        }
        now = next;
    }
}

// store_tile brings the sums of CM_N tokens, number n of the subgroup's, to shared memory, WM
// numbers each, from the quad that it returns on. Every invocation has to call it.
uint store_tile(uint n) {
    const uint mine = gl_SubgroupID * CM_N * OUT_PITCH;
    barrier();
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        coopMatStore(acc[0][i][n], tile_s, mine + i * CM_M / 4u, OUT_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
    }
    barrier();
    return mine;
}

#endif
