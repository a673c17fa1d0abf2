// A linear layer for many tokens, with matrices:
//   y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// Shared memory: max((BM+BN)*(2*BK+16), THREADS/SUBGROUP*M*(4*WN+16)) + 16 B: 20496 for 128 x 128
//   in steps of 32; with CM_BF16 16 less.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel,
//   bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups; with CM_BF16
//   shaderInt16.
// Bindings: 0 w_scale, 1 row_scale, 2 x_scale; x, w and y by address: lib/linear.glsl. With splits,
//   part s of k goes to an f32 y of its own.
// Workgroup: BM tokens (x) and BN rows (y, from first_row on) of group z / splits. A step decodes
//   BK numbers of all of them to shared memory; a subgroup holds WM x WN sums. The next step's
//   numbers come and are decoded while the products of this one run.
// Constants: lib/linear_tiles.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#define LINEAR_ROWS
#define ADDRESSED
#include "lib/linear_tiles.glsl"

const uint LINES = THREADS / UNITS;  // rows that all invocations decode at a time
const uint X_EACH = BM / LINES;
const uint W_MOST = WEIGHT_QUAD;
const uint W_FAIR = BN * BK / THREADS < BK ? BN * BK / THREADS : BK;
const uint W_VEC = W_MOST < W_FAIR ? W_MOST : W_FAIR; // weights that an invocation loads at a time
const uint W_UNITS = BK / W_VEC;
const uint W_LINES = THREADS / W_UNITS;
const uint W_EACH = BN / W_LINES;
const uint W_EIGHTS = W_EACH * (W_VEC / 8u);

uint line_, unit_;       // this invocation keeps unit_ of tokens line_, line_ + LINES, ..
uint w_line_, w_unit_;   // the same of rows, in units of W_VEC
uint x_at_[X_EACH], w_at_[W_EACH]; // k = 0 of these, counted in units of 8 and W_VEC

struct Fetch {
    uvec4 x[X_EACH];
    uvec4 w[W_EACH];
    uint x_bits[X_EACH];
    uvec2 beside[W_EACH]; // w_beside
    uint w_scale;         // STEP_SUMS without SMALL_BLOCKS: f32 bits
};

uint token_of(uint i) { return min(t0_ + line_ + i * LINES, pc.tokens - 1u); }
uint row_of(uint i) { return clamp(row0_ + w_line_ + i * W_LINES, group_ * pc.n, (group_ + 1u) * pc.n - 1u); }

// find: behind the last token and row the last ones are decoded again; what comes of it is not
// stored.
void find() {
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) x_at_[i] = x_row(token_of(i), group_) * (pc.k / 8u);
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) w_at_[i] = row_of(i) * (pc.k / W_VEC);
}

// fetch: step's numbers as they are stored. Behind the end of a row its last ones come, so that no
// load hangs on a condition.
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
        f.beside[i] = w_beside(row_of(i), w * W_VEC);
    }
    // Steps do not cross blocks of 128 numbers, and the workgroup's rows lie in one block of 128.
    f.w_scale = STEP_SUMS && !SMALL_BLOCKS ? w_block_bits(row0_, min(step * BK, pc.k - 1u)) : 0u;
}

const uint BLOCK_STEPS = FRACTIONS ? SCALE_BLOCK / BK : 1u;

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
    const bool w_there = !UNSCALED || step * W_UNITS + w_unit_ < pc.k / W_VEC; // codes are finite, and times 0 nothing
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
        [[unroll]] for (uint j = 0u; j < W_VEC / 8u; j++) {
            const uvec2 beside = STEP_SUMS && !SMALL_BLOCKS ? uvec2(f.w_scale, 0u) : f.beside[i];
            const uvec4 w = linear_weight8(weight_eight(f.w[i], j), beside, j / EIGHTS_PER_SCALE, WEIGHT_REF ? ref() : 0u);
            v.w[i * (W_VEC / 8u) + j] = w_there ? w : uvec4(0u);
        }
    }
}

void keep(Elements v) {
    const uint x_at = line_ * PITCH + unit_, w_at = (BM + w_line_) * PITCH + w_unit_ * (W_VEC / 8u);
    // Of rows 16 apart the same halves lie exchanged: one address serves all.
    const uint x_next = LINES % 16u == 0u ? 0u : LINES, w_next = W_LINES % 16u == 0u ? 0u : W_LINES, bm = BM % 16u;
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) CM_KEEP_ROW(tile_s, x_at + i * LINES * PITCH, line_ + i * x_next, v.x[i])
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) {
        [[unroll]] for (uint j = 0u; j < W_VEC / 8u; j++) {
            CM_KEEP_ROW(tile_s, w_at + i * W_LINES * PITCH + j, bm + w_line_ + i * w_next, v.w[i * (W_VEC / 8u) + j])
        }
    }
}

uint lane_() { return ROWS == 0u ? 0u : gl_SubgroupInvocationID; }

void multiply(uint m0, uint n0) {
    [[unroll]] for (uint k = 0u; k < BK / CM_K; k++) {
        CM_A a[M_TILES];
        [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
            CM_LOAD_ROWS(a[i], tile_s, m0 + i * CM_M, k * CM_K / 8u, PITCH, lane_(), gl_CooperativeMatrixLayoutRowMajor)
        }
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            CM_B b; // rows of the tile are its columns
            CM_LOAD_ROWS(b, tile_s, BM + n0 + j * CM_N, k * CM_K / 8u, PITCH, lane_(), gl_CooperativeMatrixLayoutColumnMajor)
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
    if (!UNSCALED) decode(f, step + 1u, v); // while other subgroups multiply
    barrier();
    if (UNSCALED) decode(f, step + 1u, v); // next to nothing: the numbers may come as late as this
    keep(v);
    if (FRACTIONS) unit_of_next_ = fraction(f.w_scale);
}

void main() {
    const uint tid = gl_LocalInvocationIndex, sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    const uint split = gl_WorkGroupID.z % pc.splits;
    group_ = gl_WorkGroupID.z / pc.splits;
    t0_ = first_ = gl_WorkGroupID.x * BM;
    // Tiles begin at multiples of their size among the rows of all groups, so that each lies in one
    // block of 128.
    row0_ = (group_ * pc.n / BN + gl_WorkGroupID.y) * BN + pc.first_row;
    line_ = spread_rows(tid / UNITS, LINES);
    unit_ = tid % UNITS;
    w_line_ = spread_rows(tid / W_UNITS, W_LINES);
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
    // The last step stands apart: a condition between the loads and their use would make the loads
    // wait. So would one around the change of unit: the first step of a block stands apart, too.
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
