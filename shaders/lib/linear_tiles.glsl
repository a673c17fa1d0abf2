// What the kernels of a linear layer that go through tiles in shared memory have in common:
// proj_linear_cm.comp, proj_linear_whole.comp, proj_linear_codes.comp.
//
// One workgroup of THREADS owns BM tokens and BN rows of group group_, from t0_ and row0_ on, and
// stores those from first_ on. A step is BK numbers of all of them, decoded to shared memory; a
// subgroup holds WM x WN sums in registers. Constants after the two of linear.glsl: 2 THREADS, 3
// SUBGROUP, 4..6 M, N, K of a product, 7 BM, 8 BN, 9 BK, 10 WM, 11 WN:
//   projection/linear_cm.go chooses; 12 ROWS of lib/cm_rows.glsl, with LINEAR_ROWS.
// Shared memory: max((BM+BN)*(2*BK+16), THREADS/SUBGROUP*M*(4*WN+16)) + 16: 20496 B for 128 x 128
// in steps of 32; with CM_BF16 16 B less.
#ifndef LIB_LINEAR_TILES_GLSL
#define LIB_LINEAR_TILES_GLSL
#include "linear_cm.glsl"

#include "cm_shape.glsl"
layout(constant_id = 7) const uint BM = 16u;
layout(constant_id = 8) const uint BN = 64u;
layout(constant_id = 9) const uint BK = 64u;
layout(constant_id = 10) const uint WM = 16u;
layout(constant_id = 11) const uint WN = 16u;
#ifdef LINEAR_ROWS
layout(constant_id = 12) const uint ROWS = 0u;
#ifdef LINEAR_CODES
#define CM_CODE_ROWS
#endif
#else
const uint ROWS = 0u;
#endif
#include "cm_rows.glsl"

#ifdef LINEAR_CODES
const uint QUAD = 16u; // codes of 16 bytes
const uint UNITS = BK / QUAD;
#else
const uint UNITS = BK / 8u;          // of eight numbers in a row
#endif
const uint PITCH = UNITS + 1u;       // quads from row to row of a tile; a spare one spreads rows over banks
const uint M_TILES = WM / CM_M;
const uint N_TILES = WN / CM_N;
#ifdef LINEAR_CODES
const uint SUMMED = SCALE_BLOCK < BK ? SCALE_BLOCK : BK; // numbers of a row that have one scale
const uint TILE_QUADS = (BM + BN) * PITCH + BM * BK / SUMMED / 4u;
#else
const uint TILE_QUADS = (BM + BN) * PITCH;
#endif
const uint OUT_PITCH = WN / 4u + 1u;
const uint OUT_QUADS = THREADS / SUBGROUP * CM_M * OUT_PITCH;
const uint QUADS = TILE_QUADS > OUT_QUADS ? TILE_QUADS : OUT_QUADS;

shared uvec4 tile_s[QUADS]; // [BM + BN, BK] elements, tokens first; at the end [subgroups, M, WN] f32
#ifndef LINEAR_CODES
shared uvec4 ref_s;         // .x: largest scale of the scale blocks of the rows; 16 bytes, for RADV begins tile_s after it
#endif

CM_C acc[M_TILES][N_TILES];

uint group_, t0_, row0_; // of this workgroup; rows are counted over all groups
uint first_;             // token; those before it are another workgroup's

float unit_of_sums_, unit_of_next_; // FP8: sums are this much too small: the fraction, 1 to 2, of a step's scale

// spread: line i of a step's, so that the eight invocations that store 16 bytes each at a time meet
// all banks: with rows of five quads, rows 0, 1, 4 and 5 do, or two of them that are four apart.
uint spread(uint i, uint lines) { return UNITS == 4u && lines >= 8u ? (i & ~7u) | (i & 1u) << 2 | (i >> 1) & 3u : i; }

#ifdef LINEAR_ROWS
// spread_rows: with ROWS 16 invocations store 8 bytes each at a time. Half of them shall have rows
// whose halves lie exchanged: the last bit of i that tells their lines apart tells eights of rows.
uint spread_rows(uint i, uint lines) {
    if (ROWS != 0u) {
        const uint last = 8u * lines / THREADS;
        if (lines % 16u == 0u && last > 0u) i ^= ((i / last ^ i / 8u) & 1u) * (last ^ 8u);
    }
    return spread(i, lines);
}
#else
#define spread_rows spread
#endif

// Numbers of FP8 weights with f32 scales are multiplied by the powers of two of these, which is
// exact. Where the next block of 128 begins, the sums so far are divided by its fraction and
// multiplied by that of the last.
#ifdef LINEAR_CODES
const bool FRACTIONS = false;
const int OUT_LAYOUT = gl_CooperativeMatrixLayoutColumnMajor; // rows of w are rows of sums
#else
const bool FRACTIONS = STEP_SUMS && F32_SCALES;
const int OUT_LAYOUT = gl_CooperativeMatrixLayoutRowMajor;
#endif
float fraction(uint bits) { return uintBitsToFloat((bits & 0x007FFFFFu) | 0x3F800000u); }

void change_unit() {
    const float ratio = unit_of_sums_ / unit_of_next_;
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) acc[i][j] *= ratio;
    }
    unit_of_sums_ = unit_of_next_;
}

// ref: the power of two that the rows are kept relative to, as f32 bits: the largest scale without
// its fraction, held where it and its inverse are ordinary numbers.
#ifdef LINEAR_CODES
uint ref() { return 0u; } // not asked for: codes are multiplied as they are
#else
uint ref() { return clamp(ref_s.x & 0x7F800000u, 0x01000000u, 0x7E000000u); }

// find_ref: the largest scale of the rows' blocks. A maximum is the same in any order.
void find_ref() {
    const uint tid = gl_LocalInvocationIndex;
    if (tid == 0u) ref_s.x = 0u;
    barrier();
    uint most = 0u;
    [[unroll]] for (uint r = 0u; r < BN; r += SCALE_BLOCK) { // once, but for SMALL_BLOCKS
        const uint row = min(row0_ + r, pc.groups * pc.n - 1u); // a workgroup may have none
        for (uint k = tid * SCALE_BLOCK; k < pc.k; k += THREADS * SCALE_BLOCK) most = max(most, w_block_bits(row, k) & 0x7FFFFFFFu);
    }
    atomicMax(ref_s.x, most);
    barrier();
}
#endif

// finish: the sums of a subgroup through shared memory, M tokens at a time, to y.
void finish(uint split, uint sub, uint lane, uint m0, uint n0) {
    const uint mine = sub * CM_M * OUT_PITCH;
    const uint64_t y_addr = pc.y_addr + uint64_t(split) * pc.tokens * pc.y_stride * 4u;
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        barrier();
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            coopMatStore(acc[i][j], tile_s, mine + j * CM_N / 4u, OUT_PITCH, OUT_LAYOUT);
        }
        barrier();
        for (uint at = lane; at < CM_M * WN / 4u; at += SUBGROUP) {
            const uint m = at / (WN / 4u), q = at % (WN / 4u), token = t0_ + m0 + i * CM_M + m, row = row0_ + n0 + q * 4u;
            if (token < first_ || token >= pc.tokens || row < group_ * pc.n || row >= (group_ + 1u) * pc.n) continue;
            vec4 v = uintBitsToFloat(tile_s[mine + m * OUT_PITCH + q]) * CM_UNSCALE;
            if (ROW_SCALES) v *= vec4(row_scale.v[row], row_scale.v[row + 1u], row_scale.v[row + 2u], row_scale.v[row + 3u]);
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

#endif
