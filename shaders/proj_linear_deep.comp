// A linear layer for many tokens, with matrices, in large tiles:
//   y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// Shared memory: max(2*(BM+BN)*(2*BK+16), THREADS/SUBGROUP*M*(4*WN+16)) + 4 B: 36868 for 256 x 128.
// Features: as proj_linear_whole.comp.
// Bindings: 0 w_scale, 1 row_scale, 2 x_scale; x, w and y by address: lib/linear.glsl.
// Workgroup: BM tokens and BN rows as in proj_linear_whole.comp. Two steps of 16 numbers are in
//   shared memory: one is multiplied while the next is stored, with one barrier a step.
// Constants: lib/linear_tiles.glsl; BK is 16, BM is THREADS, BN half of it, WM and WN of M and N.
//   FP8 weights by blocks, bf16 activations; T >= BM, N is a multiple of BN, K of 128.
// Numbers come in lines of 128 bytes, 64 of x and 128 of w. The steps of 64 take their eights 0 2,
// 4 6, 1 3 and 5 7, so products and sums are those of proj_linear_whole.comp. Of the rows that an
// invocation loads from, each gives it another eight of the line: so it has two of x and one of w
// to store at each step.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#define KV_DA
#define LINEAR_HALVES
#define LINEAR_BUFFERS 2u
#include "lib/linear_tiles.glsl"
#include "lib/linear_whole.glsl"

layout(constant_id = 12) const uint TRIAL = 0u;
const uint K_TILES = BK / CM_K;
const uint TURNS = K_TILES * N_TILES;
const uint X_TURN = (8u + TURNS - 1u) / TURNS, W_TURN = (4u + TURNS - 1u) / TURNS;
const uint BUFFER = (BM + BN) * PITCH;

layout(buffer_reference, std430, buffer_reference_align = 16) volatile readonly buffer Load4 { uvec4 v; };

uint lane_, turn_of_x_; // of the eight that read a line; which of four passes the first step stores
uint x_lane_, w_lane_;
uint base_row_;

uvec4 x_come_[8], w_come_[4]; // on their way
uvec4 x_[8], w_[4];           // by steps
uint scale_, scale_come_;

void fetch_x(uint pair, uint i) {
    const uint quads = pc.k / 8u, stride = pc.groups * quads;
    const uint first = x_row(t0_, group_) * quads + (2u * (i & 3u) + BM / 2u * (i >> 2)) * stride + pair * 8u;
    x_come_[i] = Load4(pc.x_addr + uint64_t(first) * 16u + uint64_t(x_lane_ + (lane_ ^ ((i & 1u) * 4u | (i >> 1 & 1u))) * 16u)).v;
}

void fetch_w(uint line, uint i) {
    const uint quads = pc.k / 16u, first = (row0_ + 2u * i) * quads + line * 8u;
    w_come_[i] = Load4(pc.w_addr + uint64_t(first) * 16u + uint64_t(w_lane_ + (lane_ ^ 2u * i) * 16u)).v;
}

// sort_x: what has come, in the order of the steps that store it.
void sort_x() {
    const bool one = (turn_of_x_ & 1u) != 0u, two = (turn_of_x_ & 2u) != 0u;
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        const uvec4 a = x_come_[4u * h], b = x_come_[4u * h + 1u], c = x_come_[4u * h + 2u], d = x_come_[4u * h + 3u];
        const uvec4 a1 = one ? b : a, b1 = one ? a : b, c1 = one ? d : c, d1 = one ? c : d;
        x_[h] = two ? c1 : a1;
        x_[2u + h] = two ? d1 : b1;
        x_[4u + h] = two ? a1 : c1;
        x_[6u + h] = two ? b1 : d1;
    }
}

void sort_w() {
    const bool one = (lane_ & 2u) != 0u, two = (lane_ & 4u) != 0u;
    const uvec4 a = w_come_[0], b = w_come_[1], c = w_come_[2], d = w_come_[3];
    const uvec4 a1 = one ? b : a, b1 = one ? a : b, c1 = one ? d : c, d1 = one ? c : d;
    const uvec4 a2 = two ? c1 : a1, b2 = two ? d1 : b1, c2 = two ? a1 : c1, d2 = two ? b1 : d1;
    w_[0] = a2;
    w_[1] = b2;
    w_[2] = c2;
    w_[3] = d2;
    scale_ = scale_come_;
}

void keep_x(uint step) {
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        const uint row = base_row_ + 2u * (turn_of_x_ ^ (step & 3u)) + BM / 2u * h;
        tile_s[(step & 1u) * BUFFER + row * PITCH + (lane_ >> 1 & 1u)] = linear_act8(x_[(step & 3u) * 2u + h], 0u);
    }
}

void keep_w(uint step) {
    const uint i = step >> 2 << 1 | step & 1u; // of the quads that a row's steps take
    const uvec4 q = w_[i];
    const uint row = BM + base_row_ + 2u * (lane_ >> 1 ^ i);
    tile_s[(step & 1u) * BUFFER + row * PITCH + (lane_ & 1u)] =
        linear_weight8((step & 2u) == 0u ? q : q.zwxy, scale_, WEIGHT_REF ? ref() : 0u);
}

void load_a(uint at, uint m, uint k, out CM_A a) {
    coopMatLoad(a, tile_s, at * BUFFER + m * PITCH + k * CM_K / 8u, PITCH, gl_CooperativeMatrixLayoutRowMajor);
}
void load_b(uint at, uint n, uint k, out CM_B b) {
    coopMatLoad(b, tile_s, at * BUFFER + (BM + n) * PITCH + k * CM_K / 8u, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
}

// multiply: the products of a step of a line; the next step is stored meanwhile, and numbers of the
// next pair of x and the next line of w are asked for.
void multiply(uint line, uint step, bool last, uint m0, uint n0) {
    const uint at = step & 1u;
    CM_A a[M_TILES];
    CM_B b[2];
    barrier();
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) load_a(at, m0 + i * CM_M, 0u, a[i]);
    load_b(at, n0, 0u, b[0]);
    [[unroll]] for (uint k = 0u; k < K_TILES; k++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            const uint turn = k * N_TILES + j, next = turn + 1u;
            if (next < TURNS) load_b(at, n0 + next % N_TILES * CM_N, next / N_TILES, b[next % 2u]);
            if ((step & 3u) == 1u && !(last && step == 5u)) {
                [[unroll]] for (uint p = 0u; p < X_TURN; p++) {
                    if (turn * X_TURN + p < 8u) fetch_x(2u * line + step / 4u + 1u, turn * X_TURN + p);
                }
            }
            if (step == 5u && !last) {
                if (turn == 0u) scale_come_ = w_block_bits(row0_, (line + 1u) * SCALE_BLOCK);
                [[unroll]] for (uint p = 0u; p < W_TURN; p++) {
                    if (turn * W_TURN + p < 4u) fetch_w(line + 1u, turn * W_TURN + p);
                }
            }
            if (turn == TURNS / 2u && !(last && step == 7u)) {
                if ((step & 3u) == 3u) sort_x();
                keep_x(step + 1u & 7u);
                if (step == 7u) sort_w();
                keep_w(step + 1u & 7u);
            }
            [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
                acc[i][j] = coopMatMulAdd(a[i], b[turn % 2u], acc[i][j]);
                if (j == N_TILES - 1u && k + 1u < K_TILES) load_a(at, m0 + i * CM_M, k + 1u, a[i]);
            }
        }
    }
}

void main() {
    const uint tid = gl_LocalInvocationIndex, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID, split = gl_WorkGroupID.z % pc.splits;
    group_ = gl_WorkGroupID.z / pc.splits;
    first_ = gl_WorkGroupID.x * BM;
    t0_ = min(first_, pc.tokens - BM);
    row0_ = group_ * pc.n + gl_WorkGroupID.y * BN + pc.first_row;
    lane_ = tid % 8u;
    turn_of_x_ = lane_ >> 2 | (lane_ & 1u) << 1;
    base_row_ = (tid >> 3 & 1u) + 8u * (tid >> 4);
    x_lane_ = base_row_ * (pc.k * 2u) * pc.groups;
    w_lane_ = base_row_ * pc.k;
    const uint m0 = sub / (BN / WN) * WM, n0 = sub % (BN / WN) * WN;
    if (WEIGHT_REF) find_ref();
    uint line = split * pc.split_steps;
    const uint last = min(line + pc.split_steps, pc.k / SCALE_BLOCK) - 1u; // the host makes no empty part
    [[unroll]] for (uint i = 0u; i < 8u; i++) fetch_x(2u * line, i);
    [[unroll]] for (uint i = 0u; i < 4u; i++) fetch_w(line, i);
    scale_come_ = w_block_bits(row0_, line * SCALE_BLOCK);
    sort_x();
    sort_w();
    keep_x(0u);
    keep_w(0u);
    unit_of_sums_ = unit_of_next_ = fraction(scale_);
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) acc[i][j] = CM_C(0.0);
    }
    [[dont_unroll]] for (; line < last; line++) {
        if (FRACTIONS) change_unit();
        multiply(line, 0u, false, m0, n0);
        multiply(line, 1u, false, m0, n0);
        multiply(line, 2u, false, m0, n0);
        multiply(line, 3u, false, m0, n0);
        multiply(line, 4u, false, m0, n0);
        multiply(line, 5u, false, m0, n0);
        multiply(line, 6u, false, m0, n0);
        multiply(line, 7u, false, m0, n0);
        if (FRACTIONS) unit_of_next_ = fraction(scale_);
    }
    if (FRACTIONS) change_unit();
    multiply(line, 0u, true, m0, n0);
    multiply(line, 1u, true, m0, n0);
    multiply(line, 2u, true, m0, n0);
    multiply(line, 3u, true, m0, n0);
    multiply(line, 4u, true, m0, n0);
    multiply(line, 5u, true, m0, n0);
    multiply(line, 6u, true, m0, n0);
    multiply(line, 7u, true, m0, n0);
    finish_whole(split, sub, lane, m0, n0);
}
