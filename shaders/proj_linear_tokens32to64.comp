// A linear layer for 32, 48 or 64 tokens a workgroup, with matrices of weights from memory to
// registers: y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// Shared memory: max(4*TOKENS*AHEAD*CHUNK, OUT_TILES*THREADS/SUBGROUP*N*(4*M+16)) B, CHUNK the
//   numbers of a chunk: 20480 for FP8 and 32 tokens.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, shaderInt16,
//   vulkanMemoryModel, bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups.
// Bindings: 0 w_scale, 1 row_scale, 2 x_scale; x, w and y by address: lib/linear.glsl. With splits,
//   part s of k goes to an f32 y of its own.
// Workgroup: TOKENS tokens (x; half as many where N is 8) and THREADS/SUBGROUP tiles of M rows (y)
//   of group z / splits, a tile to a subgroup. Weights go to its registers as in
//   proj_linear_tokens8to32.comp, a round ahead. x goes through shared memory, for all subgroups,
//   as the components that each lane wants. A round is AHEAD chunks, a chunk LANES*16 bytes of a
//   row.
// Constants after the two of lib/formats.glsl: 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a
//   product, 7 TOKENS, 8 AHEAD, 9 LANES as in proj_linear_tokens8to32.comp, 10 TURNS: 1: weights
//   are on their way in two sets of registers, which is twice the code; 11 WHOLE: 1: rows of a
//   group are whole tiles of a workgroup and k is whole rounds, which is less code; 12 SUMS: rounds
//   i, i + SUMS, .. have a sum of their own, and these are added in their order: as in
//   proj_linear_tokens8to32.comp with SUMS subgroups, so that the bits are the same.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#define LINEAR_HALVES
#define ADDRESSED
#include "lib/linear_cm.glsl"

#include "lib/cm_shape.glsl"
layout(constant_id = 7) const uint TOKENS = 32u;
layout(constant_id = 8) const uint AHEAD = 2u;
layout(constant_id = 9) const uint LANES = 4u;
layout(constant_id = 10) const uint TURNS = 0u;
layout(constant_id = 11) const uint WHOLE = 0u;
layout(constant_id = 12) const uint SUMS = 1u;

const uint TEAMS = THREADS / SUBGROUP;
#include "lib/linear_fragments.glsl"
const uint N_TILES = TOKENS / CM_N;

const uint SLOT_WORDS = FRAG_PAIRS > 0u ? FRAG_PAIRS : 1u; // of a column; without pairs a slot serves two fragments
const uint SLOTS = PAIRS / SLOT_WORDS;                     // of a chunk
const uint SLOT_QUADS = B_EACH * SLOT_WORDS / 4u;
const uint ROUND_QUADS = AHEAD * CHUNK / 8u;               // eight numbers of x each, of a token
const uint UNITS = N_TILES * LINES * ROUND_QUADS;          // B_EACH columns of such
const uint X_EACH = (UNITS + THREADS - 1u) / THREADS;
const uint STAGE = AHEAD * SLOTS * N_TILES * SLOT_QUADS * SUBGROUP; // quads

const uint OUT_PITCH = CM_M / 4u + 1u;
const uint REGION = CM_N * OUT_PITCH;                      // quads of a subgroup
const uint OUT_TILES = N_TILES < 2u ? N_TILES : 2u;        // tiles of tokens on their way out at a time
const uint OUT_QUADS = OUT_TILES * TEAMS * REGION;
const uint OUT_WIDTH = TEAMS * CM_M / 4u;                  // quads of a token
const uint QUADS = 2u * STAGE > OUT_QUADS ? 2u * STAGE : OUT_QUADS;

shared uvec4 x_s[QUADS]; // two rounds, [2, chunks, SLOTS, N_TILES, SLOT_QUADS, SUBGROUP]; at the end [OUT_TILES, subgroups, N, M] f32

#include "lib/linear_lanes.glsl"

// volatile: else loads are moved to where their results are used, and wait there for memory.
layout(buffer_reference, std430, buffer_reference_align = 16) volatile readonly buffer StreamRead { uvec4 v; };

CM_C acc[N_TILES];
CM_C all_[N_TILES]; // with SUMS: of the sums that are complete

uint group_, t0_, row0_; // of this subgroup; rows are counted over all groups
uint lane_, line_, quad_;
uint w_at_[W_EACH]; // quads
uint x_at_[X_EACH][B_EACH];

struct FetchW {
    uvec4 w[AHEAD][W_EACH];
    uvec2 beside[AHEAD][W_EACH]; // w_beside
    uint scale;                  // STEP_SUMS: f32 bits; SMALL_BLOCKS: of the largest
};
struct FetchX {
    uvec4 x[X_EACH][B_EACH];
    uint bits[X_EACH][B_EACH]; // E4M3 x: f32 bits of a scale
};

uint row_of(uint i) {
    const uint row = row0_ + i * LINES + line_;
    return WHOLE != 0u ? row : clamp(row, group_ * pc.n, (group_ + 1u) * pc.n - 1u);
}
// A quad of a row that has so many.
uint in_row(uint quad, uint quads) { return WHOLE != 0u ? quad : min(quad, quads - 1u); }
uint quad_at(uint round, uint c) { return (round * AHEAD + c) * LANES + quad_; }

void fetch_w(uint round, out FetchW f) {
    [[unroll]] for (uint c = 0u; c < AHEAD; c++) {
        const uint u = in_row(quad_at(round, c), pc.k / VEC);
        [[unroll]] for (uint i = 0u; i < W_EACH; i++) f.w[c][i] = StreamRead(pc.w_addr + uint64_t(w_at_[i] + u) * 16u).v;
        [[unroll]] for (uint i = 0u; i < W_EACH; i++) f.beside[c][i] = w_beside(row_of(i), u * VEC);
    }
    if (SMALL_BLOCKS) f.scale = largest_bits(row_of(0u), round * AHEAD * CHUNK, AHEAD * CHUNK);
    else f.scale = STEP_SUMS ? w_block_bits(row_of(0u), in_row(round * AHEAD * CHUNK, pc.k)) : 0u;
}

// The units of an invocation: quad r of a round, columns line + h * LINES of tile n.
uint unit_r(uint i) { return (gl_LocalInvocationIndex + i * THREADS) % ROUND_QUADS; }
uint unit_column(uint i) {
    const uint v = (gl_LocalInvocationIndex + i * THREADS) / ROUND_QUADS;
    return v / LINES * CM_N + v % LINES;
}
uint unit_token(uint i, uint h) { return min(t0_ + unit_column(i) + h * LINES, pc.tokens - 1u); }

void fetch_x(uint round, out FetchX f) {
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
        const uint u = in_row(round * ROUND_QUADS + unit_r(i), pc.k / 8u);
        [[unroll]] for (uint h = 0u; h < B_EACH; h++) {
            if (ACT == ACT_BF16) {
                f.x[i][h] = StreamRead(pc.x_addr + uint64_t(x_at_[i][h] + u) * 16u).v;
                f.bits[i][h] = 0u;
            } else {
                f.x[i][h] = KvRead2(pc.x_addr + uint64_t(x_at_[i][h] + u) * 8u).v.xyxy;
                f.bits[i][h] = x_block_bits(unit_token(i, h), group_, u * 8u);
            }
        }
    }
}

void keep_x(FetchX f, uint round, uint half_) {
    const uint base = half_ * STAGE;
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
        const uint r = unit_r(i), v = (gl_LocalInvocationIndex + i * THREADS) / ROUND_QUADS;
        const bool there = WHOLE != 0u || round * ROUND_QUADS + r < pc.k / 8u;
        uvec4 o[B_EACH];
        [[unroll]] for (uint h = 0u; h < B_EACH; h++) {
            const uvec4 q = in_order(linear_act8(f.x[i][h], f.bits[i][h]));
            o[h] = there ? q : uvec4(0u);
        }
        const uint j = r % (VEC / 8u), q = r / (VEC / 8u) % LANES, c = r / (CHUNK / 8u);
        const uint at = base + ((c * SLOTS + j * (4u / SLOT_WORDS)) * N_TILES + v / LINES) * (SLOT_QUADS * SUBGROUP)
            + v % LINES * LANES + q;
        if (UNITS % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < UNITS) {
            [[unroll]] for (uint s = 0u; s < 4u / SLOT_WORDS; s++) {
                [[unroll]] for (uint d = 0u; d < SLOT_QUADS; d++) {
                    uvec4 words;
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        const uint w = d * 4u + e;
                        words[e] = o[w / SLOT_WORDS][s * SLOT_WORDS + w % SLOT_WORDS];
                    }
                    x_s[at + s * (N_TILES * SLOT_QUADS * SUBGROUP) + d * SUBGROUP] = words;
                }
            }
        }
    }
}

// Decoded weights: words of two elements, in the order of k that fragments take them in.
struct Elements {
    uint w[AHEAD][W_EACH][PAIRS];
    uint scale;
};

void decode(FetchW f, uint round, out Elements v) {
    v.scale = f.scale;
    [[unroll]] for (uint c = 0u; c < AHEAD; c++) {
        const bool there = WHOLE != 0u || quad_at(round, c) < pc.k / VEC;
        [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
            const float relative = SMALL_BLOCKS ? relative_scale(f.beside[c][i].x, f.scale) : 0.0;
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                uint o[4];
                weight_pairs(f.w[c][i][j], j, f.beside[c][i], relative, o);
                if (UNSCALED) o[0] = there ? o[0] : 0u; // codes are finite, and times 0 nothing
                [[unroll]] for (uint e = 0u; e < PAIRS / 4u; e++) v.w[c][i][j * (PAIRS / 4u) + e] = o[e];
            }
        }
    }
}

void multiply(Elements v, uint half_) {
    CM_C part[N_TILES];
    [[unroll]] for (uint n = 0u; n < N_TILES; n++) part[n] = CM_C(0.0);
    const uint base = half_ * STAGE + lane_;
    [[unroll]] for (uint c = 0u; c < AHEAD; c++) {
        [[unroll]] for (uint k = 0u; k < FRAGS; k++) {
            CM_A a;
            [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
                if (FRAG_PAIRS > 0u) {
                    [[unroll]] for (uint e = 0u; e < FRAG_PAIRS; e++) fill_a(a, i * FRAG_EACH + e * 2u, v.w[c][i][k * FRAG_PAIRS + e]);
                } else fill_a1(a, i, v.w[c][i][k / 2u], k % 2u);
            }
            const uint slot = c * SLOTS + (FRAG_PAIRS > 0u ? k : k / 2u);
            [[unroll]] for (uint n = 0u; n < N_TILES; n++) {
                CM_B b;
                [[unroll]] for (uint d = 0u; d < SLOT_QUADS; d++) {
                    const uvec4 x = x_s[base + (slot * N_TILES + n) * (SLOT_QUADS * SUBGROUP) + d * SUBGROUP];
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        const uint w = d * 4u + e;
                        if (FRAG_PAIRS > 0u) fill_b(b, w / SLOT_WORDS * FRAG_EACH + w % SLOT_WORDS * 2u, x[e]);
                        else fill_b1(b, w, x[e], k % 2u);
                    }
                }
                if (STEP_SUMS) part[n] = coopMatMulAdd(a, b, part[n]);
                else acc[n] = coopMatMulAdd(a, b, acc[n]);
            }
        }
    }
    if (STEP_SUMS) {
        [[unroll]] for (uint n = 0u; n < N_TILES; n++) acc[n] += part[n] * uintBitsToFloat(v.scale);
    }
}

// finish: the sums of all subgroups to y, OUT_TILES tiles of tokens at a time. An invocation has
// the same four rows of each.
void finish(uint split, uint sub) {
    const uint quad = gl_LocalInvocationIndex % OUT_WIDTH, tile = quad / (CM_M / 4u);
    const uint row = row0_ - sub * CM_M + quad * 4u;
    const bool there = WHOLE != 0u || row >= group_ * pc.n && row < (group_ + 1u) * pc.n;
    const uint bytes = pc.y_f32 != 0u ? 4u : 2u;
    const uint64_t y_addr = pc.y_addr + (uint64_t(split) * pc.tokens * pc.y_stride + pc.y_column + row) * bytes;
    vec4 scale = vec4(LANES_UNSCALE);
    if (ROW_SCALES && there)
        scale *= vec4(row_scale.v[row], row_scale.v[row + 1u], row_scale.v[row + 2u], row_scale.v[row + 3u]);
    [[unroll]] for (uint n = 0u; n < N_TILES; n += OUT_TILES) {
        const uint tiles = N_TILES - n < OUT_TILES ? N_TILES - n : OUT_TILES;
        barrier();
        [[unroll]] for (uint i = 0u; i < tiles; i++)
            coopMatStore(acc[n + i], x_s, (i * TEAMS + sub) * REGION, OUT_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        barrier();
        [[dont_unroll]] for (uint t = gl_LocalInvocationIndex / OUT_WIDTH; t < tiles * CM_N; t += THREADS / OUT_WIDTH) {
            const uint token = t0_ + n * CM_N + t;
            if (token >= pc.tokens || !there) break;
            const vec4 v = uintBitsToFloat(x_s[(t / CM_N * TEAMS + tile) * REGION + t % CM_N * OUT_PITCH + quad % (CM_M / 4u)]) * scale;
            const uint64_t at = y_addr + uint64_t(token * pc.y_stride) * bytes;
            if (pc.y_f32 != 0u) {
                KvWrite2(at).v = floatBitsToUint(v.xy);
                KvWrite2(at + 8u).v = floatBitsToUint(v.zw);
            } else {
                KvWrite2(at).v = uvec2(bf16_pack2(v.x, v.y), bf16_pack2(v.z, v.w));
            }
        }
    }
}

// round_at: the round that comes i-th of `count`.
uint round_at(uint first, uint i, uint count) {
    if (SUMS == 1u) return first + i;
    const uint each = count / SUMS, longer = count % SUMS, head = longer * (each + 1u); // of the sums with a round more
    if (i < head) return i % (each + 1u) * SUMS + i / (each + 1u);
    return (i - head) % max(each, 1u) * SUMS + longer + (i - head) / max(each, 1u);
}

// complete: behind the i-th round; where it is the last of a sum, this is added to the others.
void complete(uint i, uint count) {
    if (SUMS == 1u) return;
    if (round_at(0u, i, count) + SUMS >= count) {
        [[unroll]] for (uint n = 0u; n < N_TILES; n++) {
            all_[n] += acc[n];
            acc[n] = CM_C(0.0);
            if (i + 1u == count) acc[n] = all_[n];
        }
    }
}

// Round i, counted from 1, is that of round_at(i - 1); 0 only fetches, so that there is one copy of
// everything: a kernel's code comes from memory, too, where other kernels run between its launches.
// What the last round fetches is for nothing, but no load hangs on a condition. One barrier a round
// is enough: x goes to the half of shared memory that was read before the barrier.
void sum_rounds(uint first, uint count) {
    if (TURNS == 0u) {
        Elements v;
        [[dont_unroll]] for (uint i = 0u;; i++) {
            const uint next = round_at(first, min(i, count - 1u), count);
            FetchX x;
            FetchW w;
            fetch_x(next, x);
            fetch_w(next, w);
            barrier();
            if (i > 0u) {
                multiply(v, (i + 1u) & 1u);
                complete(i - 1u, count);
            }
            if (i == count) return;
            keep_x(x, next, i & 1u);
            decode(w, next, v);
        }
    }
    // No weight is copied from one set to the other, which would wait for it.
    FetchW a, b;
    [[dont_unroll]] for (uint i = 0u;; i += 2u) {
        Elements v;
        FetchX x;
        const uint even = round_at(first, min(i, count - 1u), count), odd = round_at(first, min(i + 1u, count - 1u), count);
        fetch_x(even, x);
        fetch_w(even, a);
        barrier();
        if (i > 0u) {
            decode(b, round_at(first, i - 1u, count), v);
            multiply(v, 1u);
            complete(i - 1u, count);
        }
        if (i == count) return;
        keep_x(x, even, 0u);

        fetch_x(odd, x);
        fetch_w(odd, b);
        barrier();
        decode(a, even, v);
        multiply(v, 0u);
        complete(i, count);
        if (i + 1u == count) return;
        keep_x(x, odd, 1u);
    }
}

void main() {
    const uint sub = gl_SubgroupID, split = gl_WorkGroupID.z % pc.splits;
    lane_ = gl_SubgroupInvocationID;
    line_ = lane_ / LANES;
    quad_ = lane_ % LANES;
    group_ = gl_WorkGroupID.z / pc.splits;
    t0_ = gl_WorkGroupID.x * TOKENS;
    // Tiles begin at multiples of their size among the rows of all groups, so that each lies in one
    // block.
    row0_ = (group_ * pc.n / CM_M + gl_WorkGroupID.y * TEAMS + sub) * CM_M;
    [[unroll]] for (uint n = 0u; n < N_TILES; n++) acc[n] = all_[n] = CM_C(0.0);
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) w_at_[i] = row_of(i) * (pc.k / VEC);
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
        [[unroll]] for (uint h = 0u; h < B_EACH; h++) x_at_[i][h] = x_row(unit_token(i, h), group_) * (pc.k / 8u);
    }
    const uint rounds = (pc.k + AHEAD * CHUNK - 1u) / (AHEAD * CHUNK);
    const uint first = split * pc.split_steps;
    sum_rounds(first, min(pc.split_steps, rounds - first)); // the host makes no empty part
    finish(split, sub);
}
