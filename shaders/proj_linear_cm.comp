// A linear layer for many tokens, with cooperative matrices: y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// bindings: 0 w_scale, 1 row_scale, 2 x_scale; x, w and y by address: lib/linear.glsl. With splits, part s of k goes to an f32 y of its own.
// One workgroup of THREADS: BM tokens (x of the grid) and BN rows (y, from first_row on) of group z / splits. Each step decodes BK numbers of all of them
//   to shared memory; a subgroup holds WM x WN sums in registers. The next step's numbers are on their way and decoded while the products
//   of this one run; a second workgroup on the same multiprocessor has the matrix units while this one stores.
// Constants after the two of lib/linear.glsl: 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a product, 7 BM, 8 BN, 9 BK, 10 WM, 11 WN:
//   projection/linear_cm.go chooses.
// Shared memory: max((BM+BN)*(2*BK+16), THREADS/SUBGROUP*M*(4*WN+16)) + 4: 20484 B for 128 x 128 in steps of 32.
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

const uint UNITS = BK / 8u;          // of eight numbers in a row
const uint PITCH = UNITS + 1u;       // quads from row to row of a tile; a spare one spreads rows over banks
const uint LINES = THREADS / UNITS;  // rows that all invocations decode at a time
const uint X_EACH = BM / LINES;
const uint W_MOST = FORMAT == WEIGHT_BF16 ? 8u : FORMAT == WEIGHT_NVFP4 ? 32u : 16u; // weights of 16 bytes
const uint W_FAIR = BN * BK / THREADS < BK ? BN * BK / THREADS : BK;
const uint W_VEC = W_MOST < W_FAIR ? W_MOST : W_FAIR; // weights that an invocation loads at a time
const uint W_UNITS = BK / W_VEC;
const uint W_LINES = THREADS / W_UNITS;
const uint W_EACH = BN / W_LINES;
const uint W_EIGHTS = W_EACH * (W_VEC / 8u);
const uint M_TILES = WM / CM_M;
const uint N_TILES = WN / CM_N;
const uint TILE_QUADS = (BM + BN) * PITCH;
const uint OUT_PITCH = WN / 4u + 1u;
const uint OUT_QUADS = THREADS / SUBGROUP * CM_M * OUT_PITCH;
const uint QUADS = TILE_QUADS > OUT_QUADS ? TILE_QUADS : OUT_QUADS;

shared uvec4 tile_s[QUADS]; // [BM + BN, BK] elements, tokens first; at the end [subgroups, M, WN] f32
shared uint ref_s;          // largest scale of the scale blocks of the rows

#define CM_A coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA>
#define CM_B coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB>
#define CM_C coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator>

CM_C acc[M_TILES][N_TILES];

uint group_, t0_, row0_; // of this workgroup; rows are counted over all groups
uint line_, unit_;       // this invocation keeps unit_ of tokens line_, line_ + LINES, ..
uint w_line_, w_unit_;   // the same of rows, in units of W_VEC
uint x_at_[X_EACH], w_at_[W_EACH]; // k = 0 of these, counted in units of 8 and W_VEC

float unit_of_sums_, unit_of_next_; // FP8: sums are this much too small: the fraction, 1 to 2, of a step's scale

struct Fetch {
    uvec4 x[X_EACH];
    uvec4 w[W_EACH];
    uint x_bits[X_EACH];
    uint w_bits[W_EACH]; // NVFP4: codes of scales
    uint w_scale;        // FP8: f32 bits
};

// spread: line i of a step's, so that the eight invocations that store 16 bytes each at a time meet all banks: with rows of five quads,
// rows 0, 1, 4 and 5 do, or two of them that are four apart.
uint spread(uint i, uint lines) { return UNITS == 4u && lines >= 8u ? (i & ~7u) | (i & 1u) << 2 | (i >> 1) & 3u : i; }

uint token_of(uint i) { return min(t0_ + line_ + i * LINES, pc.tokens - 1u); }
uint row_of(uint i) { return clamp(row0_ + w_line_ + i * W_LINES, group_ * pc.n, (group_ + 1u) * pc.n - 1u); }

// find: behind the last token and row the last ones are decoded again; what comes of it is not stored.
void find() {
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) x_at_[i] = x_row(token_of(i), group_) * (pc.k / 8u);
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) w_at_[i] = row_of(i) * (pc.k / W_VEC);
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
    const uint w = min(step * W_UNITS + w_unit_, pc.k / W_VEC - 1u);
    const uint bytes = W_VEC * 16u / W_MOST;
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
        const uint64_t at = pc.w_addr + uint64_t(w_at_[i] + w) * bytes;
        if (bytes == 16u) f.w[i] = LinearRead4(at).v;
        else if (bytes == 8u) f.w[i] = KvRead2(at).v.xyxy;
        else f.w[i] = uvec4(KvRead1(at).v);
        f.w_bits[i] = FORMAT == WEIGHT_NVFP4 ? w_nv_scale(row_of(i), w * W_VEC) : 0u;
    }
    // Steps do not cross blocks of 128 numbers, and the workgroup's rows lie in one block of 128.
    f.w_scale = FP8_WEIGHT ? w_block_bits(row0_, min(step * BK, pc.k - 1u)) : 0u;
}

// Numbers of FP8 weights with f32 scales are multiplied by the powers of two of these, which is exact. Where the next block of 128
// begins, the sums so far are divided by its fraction and multiplied by that of the last.
const bool FRACTIONS = FORMAT == WEIGHT_FP8;
const uint BLOCK_STEPS = SCALE_BLOCK / BK;
float fraction(uint bits) { return uintBitsToFloat((bits & 0x007FFFFFu) | 0x3F800000u); }

void change_unit() {
    const float ratio = unit_of_sums_ / unit_of_next_;
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) acc[i][j] *= ratio;
    }
    unit_of_sums_ = unit_of_next_;
}

// ref: the power of two that the rows are kept relative to, as f32 bits: the largest scale without its fraction, held where it and its
// inverse are ordinary numbers.
uint ref() { return clamp(ref_s & 0x7F800000u, 0x01000000u, 0x7E000000u); }

// What a step's numbers are in shared memory.
struct Elements {
    uvec4 x[X_EACH];
    uvec4 w[W_EIGHTS]; // by a name: a compiler writes an expression's address into the names of functions
};

void decode(Fetch f, uint step, out Elements v) {
    const bool there = step * UNITS + unit_ < pc.k / 8u;
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) {
        const uvec4 x = linear_act8(f.x[i], f.x_bits[i]);
        v.x[i] = there ? x : uvec4(0u);
    }
    const bool w_there = FORMAT != WEIGHT_BF16 || step * W_UNITS + w_unit_ < pc.k / W_VEC; // codes are finite, and times 0 nothing
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
        [[unroll]] for (uint j = 0u; j < W_VEC / 8u; j++) {
            uvec4 q = f.w[i];
            if (FORMAT == WEIGHT_NVFP4) q = uvec4(q[j]);
            else if (FORMAT != WEIGHT_BF16 && j == 1u) q = q.zwzw;
            const uvec4 w = linear_weight8(q, FORMAT == WEIGHT_NVFP4 ? f.w_bits[i] >> (j / 2u * 8u) : f.w_scale, WEIGHT_REF ? ref() : 0u);
            v.w[i * (W_VEC / 8u) + j] = w_there ? w : uvec4(0u);
        }
    }
}

void keep(Elements v) {
    const uint x_at = line_ * PITCH + unit_, w_at = (BM + w_line_) * PITCH + w_unit_ * (W_VEC / 8u);
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) tile_s[x_at + i * LINES * PITCH] = v.x[i];
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
        [[unroll]] for (uint j = 0u; j < W_VEC / 8u; j++) tile_s[w_at + i * W_LINES * PITCH + j] = v.w[i * (W_VEC / 8u) + j];
    }
}

void multiply(uint m0, uint n0) {
    [[unroll]] for (uint k = 0u; k < BK / CM_K; k++) {
        CM_A a[M_TILES];
        [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
            coopMatLoad(a[i], tile_s, (m0 + i * CM_M) * PITCH + k * CM_K / 8u, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            CM_B b; // rows of the tile are its columns
            coopMatLoad(b, tile_s, (BM + n0 + j * CM_N) * PITCH + k * CM_K / 8u, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0u; i < M_TILES; i++) acc[i][j] = coopMatMulAdd(a[i], b, acc[i][j]);
        }
    }
}

// advance: the products of a step, while the next one's numbers come and are decoded.
void advance(uint step, bool first, uint m0, uint n0) {
    Fetch f;
    Elements v;
    fetch(step + 1u, f);
    if (first) change_unit();
    barrier();
    multiply(m0, n0);
    if (FORMAT != WEIGHT_BF16) decode(f, step + 1u, v); // while other subgroups multiply
    barrier();
    if (FORMAT == WEIGHT_BF16) decode(f, step + 1u, v); // next to nothing: the numbers may come as late as this
    keep(v);
    if (FRACTIONS) unit_of_next_ = fraction(f.w_scale);
}

// find_ref: the largest scale of the rows' blocks. A maximum is the same in any order.
void find_ref() {
    const uint tid = gl_LocalInvocationIndex;
    if (tid == 0u) ref_s = 0u;
    barrier();
    uint most = 0u;
    for (uint k = tid * SCALE_BLOCK; k < pc.k; k += THREADS * SCALE_BLOCK) most = max(most, w_block_bits(row0_, k) & 0x7FFFFFFFu);
    atomicMax(ref_s, most);
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
            const uint m = at / (WN / 4u), q = at % (WN / 4u), token = t0_ + m0 + i * CM_M + m, row = row0_ + n0 + q * 4u;
            if (token >= pc.tokens || row < group_ * pc.n || row >= (group_ + 1u) * pc.n) continue;
            vec4 v = uintBitsToFloat(tile_s[mine + m * OUT_PITCH + q]) * WEIGHT_UNSCALE;
            if (FORMAT == WEIGHT_NVFP4) v *= vec4(row_scale.v[row], row_scale.v[row + 1u], row_scale.v[row + 2u], row_scale.v[row + 3u]);
            if (WEIGHT_REF) v *= uintBitsToFloat(ref());
            if (FRACTIONS) v *= unit_of_sums_;
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
    // Tiles begin at multiples of their size among the rows of all groups, so that each lies in one block of 128.
    row0_ = (group_ * pc.n / BN + gl_WorkGroupID.y) * BN + pc.first_row;
    line_ = spread(tid / UNITS, LINES);
    unit_ = tid % UNITS;
    w_line_ = spread(tid / W_UNITS, W_LINES);
    w_unit_ = tid % W_UNITS;
    const uint m0 = sub / (BN / WN) * WM, n0 = sub % (BN / WN) * WN;
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) acc[i][j] = CM_C(0.0);
    }
    find();
    if (WEIGHT_REF) find_ref();
    const uint steps = (pc.k + BK - 1u) / BK;
    uint step = split * pc.split_steps;
    const uint last = min(step + pc.split_steps, steps) - 1u; // the host makes no empty part
    Fetch f0;
    Elements v0;
    fetch(step, f0);
    decode(f0, step, v0);
    keep(v0);
    unit_of_sums_ = unit_of_next_ = fraction(f0.w_scale);
    // The last step stands apart: a condition between the loads and their use would make the loads wait. So would one around the change of
    // unit: the first step of a block stands apart, too.
    if (FRACTIONS) {
        [[dont_unroll]] while (step < last) {
            const uint end = min(last, (step / BLOCK_STEPS + 1u) * BLOCK_STEPS);
            advance(step, true, m0, n0);
            [[dont_unroll]] for (step++; step < end; step++) advance(step, false, m0, n0);
        }
        change_unit();
    } else {
        [[dont_unroll]] for (; step < last; step++) advance(step, false, m0, n0);
    }
    barrier();
    multiply(m0, n0);
    finish(split, sub, lane, m0, n0);
}
