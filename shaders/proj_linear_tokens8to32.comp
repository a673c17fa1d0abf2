// A linear layer for 8, 16 or 32 tokens a workgroup, with matrices from memory to registers:
//   y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// Shared memory: TEAMS * max(TOKENS, N) * (4*M + 16) + 20 B, TEAMS = THREADS/SUBGROUP: 20500 for 16
//   subgroups and 16x16x16; with NORM at least TEAMS * 512, and 16*TEAMS + 4 more.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, shaderInt16,
//   vulkanMemoryModel, bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups.
// Bindings: 0 w_scale, 1 row_scale, 2 x_scale; x, w and y by address: lib/linear.glsl.
// Workgroup: TILES tiles of M rows (x) of group z, and TOKENS tokens (y). PARTS subgroups divide
//   the k of a tile: each takes every PARTS-th step of AHEAD chunks, a chunk being LANES*16 bytes
//   of each row. LANES lanes read a row's chunk, and the same numbers of a token, and put them into
//   fragments. The sums meet in shared memory, in the order of the subgroups. Tiles read the same x
//   at about the same time, so that all but the first find it in the first-level cache.
// Constants after the two of lib/formats.glsl: 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a
//   product, 7 TOKENS, 8 AHEAD, 9 LANES, 10 TILES, of lib/linear_norm.glsl 11 NORM (0 none, 1
//   weights of bf16, 2 of f32), 12 NORM_QUADS, 13 NORM_EPS, 14 NORM_INVERSE = 1/(8*NORM_QUADS),
//   bits of f32.
//   Component i*V + v of lane l, V = K/LANES, has to be in row (column of B) l/LANES +
//   i*SUBGROUP/LANES, at a k that depends on l%LANES and v alone, alike for A and B:
//   projection/linear_layout.go finds out.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#define LINEAR_HALVES
#define ADDRESSED
#define NORMS
#include "lib/linear_cm.glsl"

#include "lib/cm_shape.glsl"
layout(constant_id = 7) const uint TOKENS = 8u;
layout(constant_id = 8) const uint AHEAD = 2u;
layout(constant_id = 9) const uint LANES = 4u;
layout(constant_id = 10) const uint TILES = 1u;
layout(constant_id = 11) const uint NORM = 0u;
layout(constant_id = 12) const uint NORM_QUADS = 1u;
layout(constant_id = 13) const uint NORM_EPS = 0u;
layout(constant_id = 14) const uint NORM_INVERSE = 0u;

const uint TEAMS = THREADS / SUBGROUP;
const uint PARTS = TEAMS / TILES;
#include "lib/linear_fragments.glsl"
const uint X_EACH = TOKENS / LINES > 0u ? TOKENS / LINES : 1u;
const uint X_QUADS = ACT == ACT_BF16 ? VEC / 8u : 1u;
const uint COLUMNS = TOKENS > CM_N ? TOKENS : CM_N;
const uint N_TILES = COLUMNS / CM_N;

const uint OUT_PITCH = CM_M / 4u + 1u;
const uint REGION = COLUMNS * OUT_PITCH;        // quads of a subgroup

shared uvec4 sum_s[TEAMS * (NORM != 0u && REGION < 32u ? 32u : REGION)]; // [TILES, PARTS, COLUMNS, M] f32; of norms [TEAMS, 128]
shared vec4 norm_s[NORM != 0u ? TEAMS : 1u];
#define RMS_OF(i) uintBitsToFloat(sum_s[i])
#include "lib/rms.glsl"
const int NORM_SCOPE = gl_ScopeQueueFamily;
#include "lib/linear_norm.glsl"

#include "lib/linear_lanes.glsl"

CM_C acc[N_TILES];

uint group_, t0_, first_; // of this workgroup; rows are counted over all groups
uint row0_;              // of this subgroup's tile
uint line_, quad_;       // this lane reads quad quad_ of a chunk of rows and tokens line_, line_ + LINES, ..
uint w_at_[W_EACH], x_at_[X_EACH]; // quads

struct Fetch {
    uvec4 w[AHEAD][W_EACH];
    uvec4 x[AHEAD][X_EACH][X_QUADS];
    uvec2 beside[AHEAD][W_EACH]; // w_beside
    uint x_bits[AHEAD][X_EACH]; // E4M3 x: f32 bits of a scale
    uint w_scale;               // STEP_SUMS: the same; SMALL_BLOCKS: of the largest
};

uint row_of(uint i) { return clamp(row0_ + i * LINES + line_, group_ * pc.n, (group_ + 1u) * pc.n - 1u); }
uint token_of(uint i) { return min(t0_ + i * LINES + line_, pc.tokens - 1u); }
uint quad_at(uint step, uint c) { return (step * AHEAD + c) * LANES + quad_; }

// fetch: step's numbers as they are stored; behind the end of a row its last ones.
void fetch(uint step, out Fetch f) {
    [[unroll]] for (uint c = 0u; c < AHEAD; c++) {
        const uint u = min(quad_at(step, c), pc.k / VEC - 1u);
        [[unroll]] for (uint i = 0u; i < W_EACH; i++) f.w[c][i] = LinearRead4(pc.w_addr + uint64_t(w_at_[i] + u) * 16u).v;
        [[unroll]] for (uint i = 0u; i < W_EACH; i++) f.beside[c][i] = w_beside(row_of(i), u * VEC);
        [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
            [[unroll]] for (uint j = 0u; j < X_QUADS; j++)
                f.x[c][i][j] = LinearRead4(pc.x_addr + uint64_t(x_at_[i] + u * X_QUADS + j) * 16u).v;
            f.x_bits[c][i] = ACT == ACT_BF16 ? 0u : x_block_bits(token_of(i), group_, u * VEC);
        }
    }
    // A step does not cross blocks of 128 numbers, and the rows lie in one block.
    if (SMALL_BLOCKS) f.w_scale = largest_bits(row_of(0u), step * AHEAD * CHUNK, AHEAD * CHUNK);
    else f.w_scale = STEP_SUMS ? w_block_bits(min(row0_, pc.groups * pc.n - 1u), min(step * AHEAD * CHUNK, pc.k - 1u)) : 0u;
}

void consume(Fetch f, uint step) {
    CM_C part[N_TILES];
    [[unroll]] for (uint n = 0u; n < N_TILES; n++) part[n] = CM_C(0.0);
    [[unroll]] for (uint c = 0u; c < AHEAD; c++) {
        const bool there = quad_at(step, c) < pc.k / VEC;
        uint x[X_EACH][PAIRS], w[W_EACH][PAIRS];
        [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
            [[unroll]] for (uint j = 0u; j < VEC / 8u; j++) {
                const uvec4 q = f.x[c][i][ACT == ACT_BF16 ? j : 0u];
                const uvec4 o = in_order(linear_act8(ACT == ACT_BF16 ? q : j == 0u ? q.xyxy : q.zwzw, f.x_bits[c][i]));
                [[unroll]] for (uint e = 0u; e < 4u; e++) x[i][j * 4u + e] = there ? o[e] : 0u;
            }
        }
        [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
            const float relative = SMALL_BLOCKS ? relative_scale(f.beside[c][i].x, f.w_scale) : 0.0;
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                uint o[4];
                weight_pairs(f.w[c][i][j], j, f.beside[c][i], relative, o);
                if (UNSCALED) o[0] = there ? o[0] : 0u; // codes are finite, and times 0 nothing
                [[unroll]] for (uint e = 0u; e < PAIRS / 4u; e++) w[i][j * (PAIRS / 4u) + e] = o[e];
            }
        }
        [[unroll]] for (uint k = 0u; k < FRAGS; k++) {
            CM_A a;
            CM_B b[N_TILES];
            if (FRAG_PAIRS > 0u) {
                [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
                    [[unroll]] for (uint e = 0u; e < FRAG_PAIRS; e++) fill_a(a, i * FRAG_EACH + e * 2u, w[i][k * FRAG_PAIRS + e]);
                }
                [[unroll]] for (uint n = 0u; n < N_TILES; n++) {
                    b[n] = CM_B(0.0);
                    [[unroll]] for (uint h = 0u; h < B_EACH; h++) {
                        if (n * B_EACH + h < X_EACH) {
                            [[unroll]] for (uint e = 0u; e < FRAG_PAIRS; e++)
                                fill_b(b[n], h * FRAG_EACH + e * 2u, x[n * B_EACH + h][k * FRAG_PAIRS + e]);
                        }
                    }
                }
            } else { // a word serves two fragments
                [[unroll]] for (uint i = 0u; i < W_EACH; i++) fill_a1(a, i, w[i][k / 2u], k % 2u);
                [[unroll]] for (uint n = 0u; n < N_TILES; n++) {
                    b[n] = CM_B(0.0);
                    [[unroll]] for (uint h = 0u; h < B_EACH; h++) {
                        if (n * B_EACH + h < X_EACH) fill_b1(b[n], h, x[n * B_EACH + h][k / 2u], k % 2u);
                    }
                }
            }
            [[unroll]] for (uint n = 0u; n < N_TILES; n++) {
                if (STEP_SUMS) part[n] = coopMatMulAdd(a, b[n], part[n]);
                else acc[n] = coopMatMulAdd(a, b[n], acc[n]);
            }
        }
    }
    if (STEP_SUMS) {
        [[unroll]] for (uint n = 0u; n < N_TILES; n++) acc[n] += part[n] * uintBitsToFloat(f.w_scale);
    }
}

// finish: the sums of all subgroups to y.
void finish(uint sub) {
    [[unroll]] for (uint n = 0u; n < N_TILES; n++) {
        coopMatStore(acc[n], sum_s, sub * REGION + n * CM_N * OUT_PITCH, OUT_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
    }
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < TOKENS * TILES * (CM_M / 4u); at += THREADS) {
        const uint quad = at % (TILES * (CM_M / 4u)), tile = quad / (CM_M / 4u), q = quad % (CM_M / 4u);
        const uint t = at / (TILES * (CM_M / 4u)), token = t0_ + t, row = first_ + quad * 4u;
        if (token >= pc.tokens || row < group_ * pc.n || row >= (group_ + 1u) * pc.n) continue;
        vec4 v = vec4(0.0);
        [[unroll]] for (uint p = 0u; p < PARTS; p++) v += uintBitsToFloat(sum_s[(tile * PARTS + p) * REGION + t * OUT_PITCH + q]);
        v *= LANES_UNSCALE;
        if (ROW_SCALES) v *= vec4(row_scale.v[row], row_scale.v[row + 1u], row_scale.v[row + 2u], row_scale.v[row + 3u]);
        if (NORM != 0u && pc.norm_addr != uint64_t(0))
            NormPut2(norm_address(token, row)).v = uvec2(bf16_pack2(v.x, v.y), bf16_pack2(v.z, v.w));
        else y_store4(token, row, v);
    }
}

const uint NORM_STEPS = (NORM_QUADS + SUBGROUP - 1u) / SUBGROUP;
const uint NORM_SLICES = SUBGROUP < 128u ? 128u / SUBGROUP : 1u;

// norm_rows: a subgroup has every TEAMS-th token. The sum is that of proj_qkv_norm.comp, in its
// order: a lane has the sums of NORM_SLICES of its invocations. There is one copy of the code for
// all of a lane's units, which take turns: it comes from memory.
void norm_rows(uint sub, uint lane, bool rehearsed) {
    [[dont_unroll]] for (uint token = t0_ + sub; token < min(t0_ + TOKENS, pc.tokens); token += TEAMS) {
        uvec4 x[NORM_STEPS], g[NORM_STEPS], h[NORM_STEPS];
        [[unroll]] for (uint i = 0u; i < NORM_STEPS; i++) {
            const uint u = min(i * SUBGROUP + lane, NORM_QUADS - 1u);
            x[i] = NormSeen(norm_number(token, u * 8u, rehearsed)).v;
            norm_weights(u, g[i], h[i]);
        }
        [[dont_unroll]] for (uint i = 0u; i < max(NORM_STEPS, NORM_SLICES); i++) {
            const uint v = i % NORM_SLICES * SUBGROUP + lane;
            precise float sum = i < NORM_SLICES ? 0.0 : uintBitsToFloat(sum_s[sub * 32u + v / 4u][v % 4u]);
            if (i * SUBGROUP + lane < NORM_QUADS) sum = sum + rms_squares(x[0]);
            sum_s[sub * 32u + v / 4u][v % 4u] = floatBitsToUint(sum);
            if (i < NORM_STEPS) {
                const uvec4 turned = x[0];
                [[unroll]] for (uint j = 0u; j + 1u < NORM_STEPS; j++) x[j] = x[j + 1u];
                x[NORM_STEPS - 1u] = turned;
            }
        }
        subgroupBarrier();
        if (lane < 4u) norm_s[sub][lane] = rms_sum32(sub * 128u + lane * 32u);
        subgroupBarrier();
        const vec4 p = norm_s[sub];
        precise float all = (p.x + p.y) + (p.z + p.w);
        const float r = rms_factor(all, uintBitsToFloat(NORM_INVERSE), uintBitsToFloat(NORM_EPS));
        [[dont_unroll]] for (uint u = lane; u < NORM_QUADS; u += SUBGROUP) {
            vec4 a, b;
            norm_gains(g[0], h[0], a, b);
            const uvec4 y = rms_scaled(x[0], r, a, b);
            if (!rehearsed) NormResult(pc.normed_addr + (token * NORM_QUADS + u) * 16u).v = y;
            [[unroll]] for (uint i = 0u; i + 1u < NORM_STEPS; i++) {
                x[i] = x[i + 1u];
                g[i] = g[i + 1u];
                h[i] = h[i + 1u];
            }
        }
    }
}

void main() {
    const uint sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    line_ = lane / LANES;
    quad_ = lane % LANES;
    group_ = gl_WorkGroupID.z;
    t0_ = gl_WorkGroupID.y * TOKENS;
    // Tiles begin at multiples of their size among the rows of all groups, so that each lies in one
    // block.
    first_ = (group_ * pc.n / CM_M + gl_WorkGroupID.x * TILES) * CM_M;
    row0_ = first_ + (TILES > 1u ? sub / PARTS * CM_M : 0u);
    const bool rehearsed = rehearses(first_);
    if (!rehearsed) {
        [[unroll]] for (uint n = 0u; n < N_TILES; n++) acc[n] = CM_C(0.0);
        [[unroll]] for (uint i = 0u; i < W_EACH; i++) w_at_[i] = row_of(i) * (pc.k / VEC);
        [[unroll]] for (uint i = 0u; i < X_EACH; i++) x_at_[i] = x_row(token_of(i), group_) * (pc.k / VEC * X_QUADS);
        // All subgroups take as many steps; behind the last one x is 0.
        const uint last = (pc.k + AHEAD * CHUNK - 1u) / (AHEAD * CHUNK) - 1u;
        [[dont_unroll]] for (uint round = 0u; round <= last; round += PARTS) {
            Fetch f;
            fetch(round + sub % PARTS, f);
            consume(f, round + sub % PARTS);
        }
        finish(sub);
    }
    if (rehearsed || norm_mine(first_, TILES * CM_M)) norm_rows(sub, lane, rehearsed);
}
