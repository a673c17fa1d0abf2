// A linear layer for many tokens whose activations and weights are E4M3, which matrices multiply as
// they are stored: y = x w, see proj_linear.comp. The products of SUMMED numbers, which have one
// scale of x and one of w, are summed up before both multiply the sum, in f32.
// Bindings, workgroup: those of proj_linear_cm.comp. K is a multiple of 128, so steps are whole.
//   Rows of w are a matrix's rows, tokens its columns: where a lane holds numbers of one column,
//   they have one scale. Products are square.
// Constants: lib/linear_tiles.glsl.
// Shared memory: max((BM+BN)*(BK+16) + 4*BM*BK/SUMMED, THREADS/SUBGROUP*M*(4*WN+16)) B: 37376 for
//   128 x 128 in steps of 128. After the tile lie scales,
//   [BK / SUMMED, BM] f32: of x, times w's where all rows of a workgroup have one.
// Features: cooperativeMatrix (E4M3), shaderFloat8, shaderInt8, shaderFloat16,
//   vulkanMemoryModel, bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#extension GL_EXT_float_e4m3 : require
#define LINEAR_CODES
#define LINEAR_ROWS
#define ADDRESSED
#include "lib/linear_tiles.glsl"

const uint SUMS = BK / SUMMED;                  // of a step
const uint CODE_UNITS = BK / 16u;               // quads of codes of a row
const uint CODE_LINES = THREADS / CODE_UNITS;   // rows that all invocations bring in at a time
const uint CODES_X = BM / CODE_LINES;
const uint CODES_W = BN / CODE_LINES;
const uint SCALES = BM * SUMS;
const uint SCALES_EACH = (SCALES + THREADS - 1u) / THREADS;
const uint SCALES_AT = (BM + BN) * PITCH;
const uint ROW_BLOCKS = SMALL_BLOCKS ? (WN + SCALE_BLOCK - 1u) / SCALE_BLOCK : 1u; // of a subgroup
const uint W_SCALES = SMALL_BLOCKS ? ROW_BLOCKS * SUMS : 1u;

uint code_line_, code_unit_;
uint code_x_[CODES_X], code_w_[CODES_W]; // quads before rows code_line_, code_line_ + CODE_LINES, ..
float w_scale_[W_SCALES];                // of SMALL_BLOCKS and this step: [SUMS, ROW_BLOCKS]

// What comes for a step.
struct Codes {
    uvec4 x[CODES_X];
    uvec4 w[CODES_W];
    uint x_scale[SCALES_EACH];
    uint w_scale[W_SCALES]; // of this subgroup's rows; or of all rows of the workgroup
};

void find(uint tid) {
    code_line_ = spread_rows(tid / CODE_UNITS, CODE_LINES);
    code_unit_ = tid % CODE_UNITS;
    [[unroll]] for (uint i = 0u; i < CODES_X; i++) {
        code_x_[i] = x_row(min(t0_ + code_line_ + i * CODE_LINES, pc.tokens - 1u), group_) * (pc.k / 16u);
    }
    [[unroll]] for (uint i = 0u; i < CODES_W; i++) {
        code_w_[i] = clamp(row0_ + code_line_ + i * CODE_LINES, group_ * pc.n, (group_ + 1u) * pc.n - 1u) * (pc.k / 16u);
    }
}

void fetch(uint step, uint n0, out Codes f) {
    const uint u = step * CODE_UNITS + code_unit_;
    [[unroll]] for (uint i = 0u; i < CODES_X; i++) f.x[i] = LinearRead4(pc.x_addr + uint64_t(code_x_[i] + u) * 16u).v;
    [[unroll]] for (uint i = 0u; i < CODES_W; i++) f.w[i] = LinearRead4(pc.w_addr + uint64_t(code_w_[i] + u) * 16u).v;
    [[unroll]] for (uint i = 0u; i < SCALES_EACH; i++) {
        const uint at = gl_LocalInvocationIndex + i * THREADS;
        f.x_scale[i] = x_block_bits(min(t0_ + at % BM, pc.tokens - 1u), group_, step * BK + at / BM % SUMS * SUMMED);
    }
    [[unroll]] for (uint i = 0u; i < W_SCALES; i++) {
        const uint row = SMALL_BLOCKS ? min(row0_ + n0 + i % ROW_BLOCKS * SCALE_BLOCK, pc.groups * pc.n - 1u) : row0_;
        f.w_scale[i] = w_block_bits(row, step * BK + i / ROW_BLOCKS * SUMMED);
    }
}

void keep(Codes f) {
    const uint next = CODE_LINES % 16u == 0u ? 0u : CODE_LINES; // of rows 16 apart the same halves lie exchanged
    [[unroll]] for (uint i = 0u; i < CODES_X + CODES_W; i++) {
        const uvec4 q = i < CODES_X ? f.x[i] : f.w[i - CODES_X];
        const uint first = i < CODES_X ? 0u : BM, nth = i < CODES_X ? i : i - CODES_X;
        const uint row = first + code_line_ + nth * CODE_LINES, like = first % 16u + code_line_ + nth * next;
        CM_KEEP_ROW(tile_s, row * PITCH + code_unit_, like, q)
    }
    [[unroll]] for (uint i = 0u; i < SCALES_EACH; i++) {
        const uint at = gl_LocalInvocationIndex + i * THREADS;
        const float scale = uintBitsToFloat(f.x_scale[i]) * (SMALL_BLOCKS ? 1.0 : uintBitsToFloat(f.w_scale[0]));
        if (SCALES % THREADS == 0u || at < SCALES) tile_s[SCALES_AT + at / 4u][at % 4u] = floatBitsToUint(scale);
    }
    [[unroll]] for (uint i = 0u; i < W_SCALES; i++) w_scale_[i] = uintBitsToFloat(f.w_scale[i]);
}

// sum: the products of a step.
void sum(uint m0, uint n0) {
    const uint count = SUMMED / CM_K, lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint s = 0u; s < SUMS; s++) {
        coopmat<floate4m3_t, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA> w[N_TILES][count];
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            [[unroll]] for (uint k = 0u; k < count; k++) {
                CM_LOAD_CODES(w[j][k], tile_s, BM + n0 + j * CM_N, (s * SUMMED + k * CM_K) / QUAD, PITCH, lane,
                              gl_CooperativeMatrixLayoutRowMajor)
            }
        }
        [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
            coopmat<floate4m3_t, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB> x[count];
            [[unroll]] for (uint k = 0u; k < count; k++) {
                CM_LOAD_CODES(x[k], tile_s, m0 + i * CM_M, (s * SUMMED + k * CM_K) / QUAD, PITCH, lane,
                              gl_CooperativeMatrixLayoutColumnMajor)
            }
            CM_C scale; // stride 0: every row the same
            coopMatLoad(scale, tile_s, SCALES_AT + (s * BM + m0 + i * CM_M) / 4u, 0u, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
                CM_C part = CM_C(0.0);
                [[unroll]] for (uint k = 0u; k < count; k++) part = coopMatMulAdd(w[j][k], x[k], part);
                const float more = SMALL_BLOCKS ? w_scale_[s * ROW_BLOCKS + j * CM_N / SCALE_BLOCK] : 1.0;
                [[unroll]] for (uint e = 0u; e < part.length(); e++) acc[i][j][e] += part[e] * (scale[e] * more);
            }
        }
    }
}

void main() {
    const uint sub = gl_SubgroupID, split = gl_WorkGroupID.z % pc.splits;
    group_ = gl_WorkGroupID.z / pc.splits;
    t0_ = first_ = gl_WorkGroupID.x * BM;
    row0_ = (group_ * pc.n / BN + gl_WorkGroupID.y) * BN + pc.first_row; // as in proj_linear_cm
    const uint m0 = sub / (BN / WN) * WM, n0 = sub % (BN / WN) * WN;
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) acc[i][j] = CM_C(0.0);
    }
    find(gl_LocalInvocationIndex);
    uint step = split * pc.split_steps;
    const uint last = min(step + pc.split_steps, pc.k / BK) - 1u; // the host makes no empty part
    Codes f;
    fetch(step, n0, f);
    keep(f);
    [[dont_unroll]] for (; step < last; step++) {
        fetch(step + 1u, n0, f);
        barrier();
        sum(m0, n0);
        barrier();
        keep(f);
    }
    barrier();
    sum(m0, n0);
    finish(split, sub, gl_SubgroupInvocationID, m0, n0);
}
