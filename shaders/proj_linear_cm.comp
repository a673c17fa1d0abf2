// A linear layer for many tokens, with cooperative matrices: y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// bindings: 0 w_scale, 1 row_scale, 2 x_scale; x, w and y by address: lib/linear.glsl. With splits, part s of k goes to an f32 y of its own.
// One workgroup of THREADS: BM tokens (x of the grid) and BN rows (y) of group z / splits. Each step decodes BK numbers of all of them
//   to shared memory while the products of the step before run; a subgroup holds WM x WN sums in registers.
// Constants after the two of lib/linear.glsl: 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a product, 7 BM, 8 BN, 9 BK, 10 WM, 11 WN,
//   12 BUFFERS (2: one barrier a step, 1: two, and half the memory): projection/linear_cm.go chooses.
// Shared memory: max(BUFFERS*(BM+BN)*(2*BK+16), THREADS/SUBGROUP*M*(4*WN+16)) + 8: 36872 B for 256 x 128 in steps of 16.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel, bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#define KV_DA
#include "lib/linear_cm.glsl"

layout(local_size_x = 128, local_size_x_id = 2) in;
const uint THREADS = gl_WorkGroupSize.x;
layout(constant_id = 3) const uint SUBGROUP = 32u;
layout(constant_id = 4) const uint CM_M = 16u;
layout(constant_id = 5) const uint CM_N = 16u;
layout(constant_id = 6) const uint CM_K = 16u;
layout(constant_id = 7) const uint BM = 16u;
layout(constant_id = 8) const uint BN = 64u;
layout(constant_id = 9) const uint BK = 64u;
layout(constant_id = 10) const uint WM = 16u;
layout(constant_id = 11) const uint WN = 16u;
layout(constant_id = 12) const uint BUFFERS = 1u;

const uint UNITS = BK / 8u;          // of eight numbers in a row
const uint PITCH = UNITS + 1u;       // quads from row to row of a tile; a spare one spreads rows over banks
const uint LINES = THREADS / UNITS;  // rows that all invocations decode at a time
const uint X_EACH = BM / LINES;
const uint W_EACH = BN / LINES;
const uint M_TILES = WM / CM_M;
const uint N_TILES = WN / CM_N;
const uint BUFFER = (BM + BN) * PITCH;
const uint OUT_PITCH = WN / 4u + 1u;
const uint OUT_QUADS = THREADS / SUBGROUP * CM_M * OUT_PITCH;
const uint QUADS = BUFFERS * BUFFER > OUT_QUADS ? BUFFERS * BUFFER : OUT_QUADS;

shared uvec4 tile_s[QUADS]; // [BUFFERS, BM + BN, BK] elements, tokens first; at the end [subgroups, M, WN] f32
shared uint ref_s[2];       // largest scales of the (at most two) scale blocks that the rows lie in

#define CM_A coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA>
#define CM_B coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB>
#define CM_C coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator>

CM_C acc[M_TILES][N_TILES];

uint group_, t0_, n0_; // of this workgroup
uint line_, unit_;     // this invocation decodes unit_ of rows line_, line_ + LINES, ..
uint x_at_[X_EACH], w_at_[W_EACH]; // the eight numbers at k = 0 of these rows, counted in units

struct Fetch {
    uvec4 x[X_EACH];
    uvec4 w[W_EACH];
    uint x_bits[X_EACH];
    uint w_bits[W_EACH];
};

uint token_of(uint i) { return min(t0_ + line_ + i * LINES, pc.tokens - 1u); }
uint row_of(uint i) { return group_ * pc.n + min(n0_ + line_ + i * LINES, pc.n - 1u); }

// find: behind the last token and row the last ones are decoded again; what comes of it is not stored.
void find() {
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) x_at_[i] = x_row(token_of(i), group_) * (pc.k / 8u);
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) w_at_[i] = row_of(i) * (pc.k / 8u);
}

// fetch: step's numbers as they are stored. Behind the end of a row its last ones come, so that no load hangs on a condition.
void fetch(uint step, out Fetch f) {
    const uint u = min(step * UNITS + unit_, pc.k / 8u - 1u);
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
        if (ACT == ACT_BF16) {
            f.x[i] = LinearRead4(pc.x_addr + uint64_t(x_at_[i] + u) * 16u).v;
            f.x_bits[i] = 0u;
        } else {
            f.x[i] = KvRead2(pc.x_addr + uint64_t(x_at_[i] + u) * 8u).v.xyxy;
            f.x_bits[i] = x_block_bits(token_of(i), group_, u * 8u);
        }
    }
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
        if (FORMAT == WEIGHT_BF16) {
            f.w[i] = LinearRead4(pc.w_addr + uint64_t(w_at_[i] + u) * 16u).v;
            f.w_bits[i] = 0u;
        } else if (FORMAT == WEIGHT_NVFP4) {
            f.w[i] = uvec4(KvRead1(pc.w_addr + uint64_t(w_at_[i] + u) * 4u).v);
            f.w_bits[i] = w_nv_scale(row_of(i), u * 8u);
        } else {
            f.w[i] = KvRead2(pc.w_addr + uint64_t(w_at_[i] + u) * 8u).v.xyxy;
            f.w_bits[i] = w_block_bits(row_of(i), u * 8u);
        }
    }
}

// ref_of: the power of two that row n of the group is kept relative to, as f32 bits: the largest scale without its fraction, held
// where it and its inverse are ordinary numbers.
uint ref_of(uint n) {
    const uint row = group_ * pc.n + min(n, pc.n - 1u);
    return clamp(ref_s[row / SCALE_BLOCK - (group_ * pc.n + n0_) / SCALE_BLOCK] & 0x7F800000u, 0x01000000u, 0x7E000000u);
}

void keep(Fetch f, uint step, uint buf) {
    const bool there = step * UNITS + unit_ < pc.k / 8u;
    const uint at = buf * BUFFER + line_ * PITCH + unit_;
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
        const uvec4 v = linear_act8(f.x[i], f.x_bits[i]);
        tile_s[at + i * LINES * PITCH] = there ? v : uvec4(0u);
    }
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
        const uvec4 v = linear_weight8(f.w[i], f.w_bits[i], WEIGHT_REF ? ref_of(n0_ + line_ + i * LINES) : 0u);
        tile_s[at + (BM + i * LINES) * PITCH] = there ? v : uvec4(0u);
    }
}

void multiply(uint buf, uint m0, uint n0) {
    [[unroll]] for (uint k = 0u; k < BK / CM_K; k++) {
        CM_A a[M_TILES];
        [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
            coopMatLoad(a[i], tile_s, buf * BUFFER + (m0 + i * CM_M) * PITCH + k * CM_K / 8u, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            CM_B b; // rows of the tile are its columns
            coopMatLoad(b, tile_s, buf * BUFFER + (BM + n0 + j * CM_N) * PITCH + k * CM_K / 8u, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0u; i < M_TILES; i++) acc[i][j] = coopMatMulAdd(a[i], b, acc[i][j]);
        }
    }
}

// find_refs: the largest scales of the rows' blocks. A maximum is the same in any order.
void find_refs() {
    const uint tid = gl_LocalInvocationIndex;
    if (tid < 2u) ref_s[tid] = 0u;
    barrier();
    const uint first = (group_ * pc.n + n0_) / SCALE_BLOCK, last = (group_ * pc.n + min(n0_ + BN, pc.n) - 1u) / SCALE_BLOCK;
    for (uint b = first; b <= last; b++) {
        uint most = 0u;
        for (uint k = tid * SCALE_BLOCK; k < pc.k; k += THREADS * SCALE_BLOCK) most = max(most, w_block_bits(b * SCALE_BLOCK, k) & 0x7FFFFFFFu);
        atomicMax(ref_s[b - first], most);
    }
    barrier();
}

// finish: the sums of a subgroup through shared memory, M tokens at a time, to y.
void finish(uint split, uint sub, uint lane, uint m0, uint n0) {
    const uint mine = sub * CM_M * OUT_PITCH;
    const uint64_t y_addr = pc.y_addr + uint64_t(split) * pc.tokens * pc.y_stride * 4u;
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        barrier();
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            coopMatStore(acc[i][j], tile_s, mine + j * CM_N / 4u, OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        for (uint at = lane; at < CM_M * WN / 4u; at += SUBGROUP) {
            const uint m = at / (WN / 4u), q = at % (WN / 4u), token = t0_ + m0 + i * CM_M + m, n = n0_ + n0 + q * 4u;
            if (token >= pc.tokens || n >= pc.n) continue;
            vec4 v = uintBitsToFloat(tile_s[mine + m * OUT_PITCH + q]) * WEIGHT_UNSCALE;
            const uint row = group_ * pc.n + n;
            if (FORMAT == WEIGHT_NVFP4) v *= vec4(row_scale.v[row], row_scale.v[row + 1u], row_scale.v[row + 2u], row_scale.v[row + 3u]);
            if (WEIGHT_REF) v *= uintBitsToFloat(ref_of(n));
            const uint y = token * pc.y_stride + pc.y_column + row;
            if (pc.y_f32 != 0u) {
                KvWrite2(y_addr + uint64_t(y) * 4u).v = floatBitsToUint(v.xy);
                KvWrite2(y_addr + uint64_t(y) * 4u + 8u).v = floatBitsToUint(v.zw);
            } else {
                KvWrite2(y_addr + uint64_t(y) * 2u).v = uvec2(bf16_pack2(v.x, v.y), bf16_pack2(v.z, v.w));
            }
        }
    }
}

void main() {
    const uint tid = gl_LocalInvocationIndex, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    const uint split = gl_WorkGroupID.z % pc.splits;
    group_ = gl_WorkGroupID.z / pc.splits;
    t0_ = gl_WorkGroupID.x * BM;
    n0_ = gl_WorkGroupID.y * BN;
    line_ = tid / UNITS;
    unit_ = tid % UNITS;
    const uint m0 = sub / (BN / WN) * WM, n0 = sub % (BN / WN) * WN;
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) acc[i][j] = CM_C(0.0);
    }
    find();
    if (WEIGHT_REF) find_refs();
    const uint steps = (pc.k + BK - 1u) / BK;
    uint step = split * pc.split_steps;
    const uint last = min(step + pc.split_steps, steps) - 1u; // the host makes no empty part
    uint buf = 0u;
    Fetch first_;
    fetch(step, first_);
    keep(first_, step, 0u);
    [[dont_unroll]] for (;;) {
        Fetch f;
        fetch(min(step + 1u, last), f);
        barrier();
        multiply(buf, m0, n0);
        if (step >= last) break;
        step++;
        if (BUFFERS == 1u) barrier();
        else buf ^= 1u;
        keep(f, step, buf);
    }
    finish(split, sub, lane, m0, n0);
}
