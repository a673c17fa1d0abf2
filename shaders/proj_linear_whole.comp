// A linear layer for many tokens, with matrices, in whole tiles:
//   y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// Shared memory: max((BM+BN)*(2*BK+16), THREADS/SUBGROUP*M*(4*WN+16)) + 16 B: 20496 for 128 x 128
//   in steps of 32; with CM_BF16 16 less.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, shaderInt16,
//   vulkanMemoryModel, bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups.
// Bindings: 0 w_scale, 1 row_scale, 2 x_scale; x, w and y by address: lib/linear.glsl. With splits,
//   part s of k goes to an f32 y of its own.
// Workgroup: BM tokens (x) and BN rows (y, from first_row on) of group z / splits, as in
//   proj_linear_cm.comp. But numbers come for two steps at a time, so that whole lines of bf16 are
//   read: x during the products of one step, weights during those of the other. Half of them stay
//   in registers until the tile in shared memory has been used. The first step takes the even
//   eights of a pair, the second the odd.
// Constants: lib/linear_tiles.glsl; BK is 32. T >= BM, N is a multiple of BN, K of what split_steps
//   counts: 2*BK, or with FP8 weights in blocks of 128 a block. Rows are shorter than 2^26 bytes.
// The last tile of tokens begins earlier and stores only what is its own.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#define LINEAR_HALVES
#define ADDRESSED
#include "lib/linear_tiles.glsl"

const uint PAIR = 2u * BK;
const uint X_VEC = ACT_QUAD; // numbers of a quad
const uint W_VEC = WEIGHT_QUAD;
const uint X_LINES = THREADS / (PAIR / X_VEC); // rows that all invocations load at a time
// LINES: weights come for four steps at a time, which are a line of 128 codes and a block of one
// scale. Registers have to hold three of the steps, which not everything that decodes x leaves, nor
// the scales of SMALL_BLOCKS: linesFit in projection/linear_whole.go.
#ifdef CM_BF16
const bool LINES = STEP_SUMS && !SMALL_BLOCKS && ACT != ACT_FP8_PACKED;
#else
const bool LINES = STEP_SUMS && !SMALL_BLOCKS && ACT != ACT_BF16;
#endif
// SPAN: what split_steps counts: a part of FP8 weights in blocks of 128 is whole blocks.
const uint SPAN = STEP_SUMS && !SMALL_BLOCKS ? SCALE_BLOCK : PAIR;
const uint BLOCK_PAIRS = FRACTIONS ? SCALE_BLOCK / PAIR : 1u;
const uint W_LINES = THREADS / ((LINES ? SPAN : PAIR) / W_VEC);
const uint X_EACH = BM / X_LINES, W_EACH = BN / W_LINES; // passes over the rows, two or more
const uint X_TWOS = X_EACH / 2u, W_TWOS = W_EACH / 2u; // by names: a compiler writes an expression's address into the names of functions
const uint X_EIGHTS = BM * BK / 8u / THREADS, W_EIGHTS = BN * BK / 8u / THREADS;
const uint K_TILES = BK / CM_K;
const uint TURNS = K_TILES * N_TILES; // among which the loads of a step are spread
const uint X_TURN = (X_EACH + TURNS - 1u) / TURNS, W_TURN = (W_EACH + TURNS - 1u) / TURNS;

// Numbers that become elements as they are need no time between their arrival and the barrier.
#ifdef CM_BF16
const bool X_READY = ACT == ACT_BF16, W_READY = UNSCALED;
#else
const bool X_READY = false, W_READY = false;
#endif

// volatile: else loads are moved behind the products, to where their results are used.
layout(buffer_reference, std430, buffer_reference_align = 16) volatile readonly buffer Load4 { uvec4 v; };

uint tid_;
uint x_lane_, w_lane_; // bytes from the first quad of a tile's pair to where this invocation's rows begin

// line_of: the row of a tile that an invocation loads in pass 0, apart: how far behind is the one
// of pass i. Where quads are eights, an invocation has an even one in one of two passes that are
// four rows apart and an odd one in the other: so at each step each keeps one of the two, and eight
// neighbours that store 16 bytes each meet all banks.
uint line_of(uint vec, uint lines) {
    const uint i = tid_ / (PAIR / vec);
    return vec == 8u ? (i & 3u) + 8u * (i >> 2) : spread(i, lines);
}
uint apart(uint vec, uint lines, uint i) { return vec == 8u ? 4u * (i & 1u) + 2u * lines * (i >> 1) : lines * i; }
uint quad_of(uint vec, uint i) { return (tid_ % (PAIR / vec)) ^ (vec == 8u ? i & 1u : 0u); }

// The same of w. Of a line, an invocation has a quad of one pair in one of two passes that are four
// rows apart and a quad of the other pair in the other.
uint w_line() {
    const uint i = tid_ / 8u;
    return LINES ? (i & 3u) + 8u * (i >> 2) : line_of(W_VEC, W_LINES);
}
uint w_apart(uint i) { return LINES ? 4u * (i & 1u) + 2u * W_LINES * (i >> 1) : apart(W_VEC, W_LINES, i); }
uint w_quad_of(uint i) { return LINES ? tid_ % 8u ^ (i & 1u) * 4u : quad_of(W_VEC, i); }

struct FetchX {
    uvec4 q[X_EACH];
    uint bits[X_EACH]; // E4M3 x: f32 bits of a scale
};
struct FetchW {
    uvec4 q[W_EACH];
    uvec2 beside[W_EACH]; // w_beside
    uint scale;           // STEP_SUMS without SMALL_BLOCKS: f32 bits
};

void fetch_x(uint pair, uint i, inout FetchX f) {
    const uint quads = pc.k / X_VEC, stride = ACT == ACT_BF16 ? pc.groups * quads : quads;
    const uint first = x_row(t0_, group_) * quads + apart(X_VEC, X_LINES, i) * stride + pair * (PAIR / X_VEC);
    f.q[i] = Load4(pc.x_addr + uint64_t(first) * 16u + uint64_t(x_lane_ + quad_of(X_VEC, i) * 16u)).v;
    const uint token = t0_ + line_of(X_VEC, X_LINES) + apart(X_VEC, X_LINES, i);
    const uint k = pair * PAIR + (ACT == ACT_MXFP8 ? quad_of(X_VEC, i) * X_VEC : 0u);
    f.bits[i] = ACT == ACT_BF16 ? 0u : x_block_bits(token, group_, k);
}

void fetch_w(uint pair, uint i, inout FetchW f) {
    const uint quads = pc.k / W_VEC;
    const uint first = (row0_ + w_apart(i)) * quads + pair * (PAIR / W_VEC);
    f.q[i] = Load4(pc.w_addr + uint64_t(first) * 16u + uint64_t(w_lane_ + w_quad_of(i) * 16u)).v;
    const uint row = row0_ + w_line() + w_apart(i);
    f.beside[i] = w_beside(row, pair * PAIR + w_quad_of(i) * W_VEC);
}

void fetch_scale(uint pair, inout FetchW f) { f.scale = STEP_SUMS && !SMALL_BLOCKS ? w_block_bits(row0_, pair * PAIR) : 0u; }

// What two passes have for one step, as it is stored.
struct HalfX {
    uvec4 q[X_TWOS];
    uint bits[X_EACH];
};
struct HalfW {
    uvec4 q[W_TWOS];
    uvec2 beside[W_EACH];
    uint scale;
};

HalfX held_x_; // of the second step
HalfW held_w_;

uvec4 half_of(uint vec, uvec4 a, uvec4 b, uint odd) {
    if (vec == 8u) return ((tid_ & 1u) ^ odd) != 0u ? b : a;
    if (vec == 16u) return odd == 0u ? uvec4(a.xy, b.xy) : uvec4(a.zw, b.zw);
    return odd == 0u ? uvec4(a.xz, b.xz) : uvec4(a.yw, b.yw);
}

void half_x(FetchX f, uint odd, out HalfX o) {
    [[unroll]] for (uint i = 0u; i < X_TWOS; i++) o.q[i] = half_of(X_VEC, f.q[2u * i], f.q[2u * i + 1u], odd);
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) o.bits[i] = f.bits[i];
}

void half_w(FetchW f, uint odd, out HalfW o) {
    [[unroll]] for (uint i = 0u; i < W_TWOS; i++) o.q[i] = half_of(W_VEC, f.q[2u * i], f.q[2u * i + 1u], odd);
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) o.beside[i] = f.beside[i];
    o.scale = f.scale;
}

// What a step's numbers are in shared memory.
struct Elements {
    uvec4 x[X_EIGHTS];
    uvec4 w[W_EIGHTS];
};

void decode_x(HalfX h, inout Elements v) {
    [[unroll]] for (uint i = 0u; i < X_EIGHTS; i++) {
        const uvec4 q = X_VEC == 8u ? h.q[i] : i % 2u == 0u ? h.q[i / 2u] : h.q[i / 2u].zwzw;
        v.x[i] = linear_act8(q, h.bits[i]);
    }
}

void decode_w(HalfW h, inout Elements v) {
    const uint EIGHTS = W_VEC / 8u; // of a quad
    [[unroll]] for (uint i = 0u; i < W_EIGHTS; i++) {
        const uvec4 w = weight_eight(h.q[i / EIGHTS], i % EIGHTS);
        const uvec2 beside = STEP_SUMS && !SMALL_BLOCKS ? uvec2(h.scale, 0u) : h.beside[i * 2u / EIGHTS];
        v.w[i] = linear_weight8(w, beside, i * 2u % EIGHTS / EIGHTS_PER_SCALE, WEIGHT_REF ? ref() : 0u);
    }
}

// keep_at: where eight i of an invocation goes, in rows of PITCH.
uint keep_at(uint vec, uint lines, uint i, uint odd) {
    if (vec == 8u) return (line_of(vec, lines) + apart(vec, lines, 2u * i) + 4u * ((tid_ & 1u) ^ odd)) * PITCH + tid_ % 8u / 2u;
    if (vec == 16u) return (line_of(vec, lines) + apart(vec, lines, i)) * PITCH + tid_ % 4u;
    return (line_of(vec, lines) + apart(vec, lines, i / 2u)) * PITCH + tid_ % 2u * 2u + i % 2u;
}

uint later_; // 1: the second pair of a line is stored

uint w_keep_at(uint i, uint odd) {
    if (LINES) return (w_line() + w_apart(2u * i) + 4u * ((tid_ >> 2 & 1u) ^ later_)) * PITCH + tid_ % 4u;
    return keep_at(W_VEC, W_LINES, i, odd);
}

void keep(Elements v, uint odd) {
    [[unroll]] for (uint i = 0u; i < X_EIGHTS; i++) tile_s[keep_at(X_VEC, X_LINES, i, odd)] = v.x[i];
    [[unroll]] for (uint i = 0u; i < W_EIGHTS; i++) tile_s[BM * PITCH + w_keep_at(i, odd)] = v.w[i];
}

void load_a(uint m, uint k, out CM_A a) { coopMatLoad(a, tile_s, m * PITCH + k * CM_K / 8u, PITCH, gl_CooperativeMatrixLayoutRowMajor); }
void load_b(uint n, uint k, out CM_B b) {
    coopMatLoad(b, tile_s, (BM + n) * PITCH + k * CM_K / 8u, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
}

const uint NOTHING = 0u, OF_X = 1u, OF_W = 2u;

// multiply: the products of a step, and between them the loads of what `loads` says of a pair. A
// fragment comes while the one before is used.
void multiply(uint m0, uint n0, uint loads, uint pair, inout FetchX x, inout FetchW w) {
    CM_A a[M_TILES];
    CM_B b[2];
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) load_a(m0 + i * CM_M, 0u, a[i]);
    load_b(n0, 0u, b[0]);
    if (loads == OF_W) fetch_scale(pair, w);
    [[unroll]] for (uint k = 0u; k < K_TILES; k++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            const uint turn = k * N_TILES + j, next = turn + 1u;
            if (next < TURNS) load_b(n0 + next % N_TILES * CM_N, next / N_TILES, b[next % 2u]);
            [[unroll]] for (uint p = 0u; p < X_TURN; p++) {
                if (loads == OF_X && turn * X_TURN + p < X_EACH) fetch_x(pair, turn * X_TURN + p, x);
            }
            [[unroll]] for (uint p = 0u; p < W_TURN; p++) {
                if (loads == OF_W && turn * W_TURN + p < W_EACH) fetch_w(pair, turn * W_TURN + p, w);
            }
            [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
                acc[i][j] = coopMatMulAdd(a[i], b[turn % 2u], acc[i][j]);
                if (j == N_TILES - 1u && k + 1u < K_TILES) load_a(m0 + i * CM_M, k + 1u, a[i]);
            }
        }
    }
}

// EVEN_X, EVEN_W: the first step of a pair that has come, decoded.
#define EVEN_X { half_x(x, 0u, even_x); decode_x(even_x, v); }
#define EVEN_W { half_w(w, 0u, even_w); decode_w(even_w, v); }

// store_even: the first step of a pair that has come, when all subgroups have multiplied the step
// before; what needs decoding is decoded before that. The other step is held.
void store_even(FetchX x, FetchW w) {
    Elements v;
    HalfX even_x;
    HalfW even_w;
    if (!X_READY) EVEN_X
    if (!W_READY) EVEN_W
    barrier();
    if (W_READY) EVEN_W
    if (X_READY) EVEN_X
    keep(v, 0u);
    half_x(x, 1u, held_x_);
    half_w(w, 1u, held_w_);
}

// store_odd: the same of the step that was held.
void store_odd() {
    Elements v;
    if (!X_READY) decode_x(held_x_, v);
    if (!W_READY) decode_w(held_w_, v);
    barrier();
    if (W_READY) decode_w(held_w_, v);
    if (X_READY) decode_x(held_x_, v);
    keep(v, 1u);
}

// advance: the products of a pair, while the next one's numbers come.
void advance(uint pair, uint m0, uint n0) {
    FetchX x;
    FetchW w;
    barrier();
    multiply(m0, n0, OF_X, pair + 1u, x, w);
    store_odd();
    barrier();
    multiply(m0, n0, OF_W, pair + 1u, x, w);
    store_even(x, w);
}

// line_w: step `odd` of pair `later` of a line.
void line_w(FetchW w, uint later, uint odd, out HalfW o) {
    uvec4 q[W_TWOS];
    [[unroll]] for (uint i = 0u; i < W_TWOS; i++) q[i] = ((tid_ >> 2 & 1u) ^ later) != 0u ? w.q[2u * i + 1u] : w.q[2u * i];
    [[unroll]] for (uint i = 0u; i < W_TWOS / 2u; i++) o.q[i] = half_of(W_VEC, q[2u * i], q[2u * i + 1u], odd);
    o.scale = w.scale;
}

HalfW held_w2_, held_w3_; // the steps of the second pair of a line

// store_line: store_even of a line that has three steps held.
void store_line(FetchX x, FetchW w) {
    Elements v;
    HalfX even_x;
    HalfW even_w;
    later_ = 0u;
    line_w(w, 0u, 0u, even_w);
    if (!X_READY) EVEN_X
    decode_w(even_w, v);
    barrier();
    if (X_READY) EVEN_X
    keep(v, 0u);
    half_x(x, 1u, held_x_);
    line_w(w, 0u, 1u, held_w_);
    line_w(w, 1u, 0u, held_w2_);
    line_w(w, 1u, 1u, held_w3_);
}

// store_later: the same of the second pair of a line.
void store_later(FetchX x) {
    Elements v;
    HalfX even_x;
    later_ = 1u;
    if (!X_READY) EVEN_X
    decode_w(held_w2_, v);
    barrier();
    if (X_READY) EVEN_X
    keep(v, 0u);
    half_x(x, 1u, held_x_);
    [[unroll]] for (uint i = 0u; i < W_TWOS / 2u; i++) held_w_.q[i] = held_w3_.q[i];
}

// advance_line: the products of a line, while x of its second pair and, but for the last line, the
// next line's numbers come. Its text stands here and not in functions of its own, or the compiler
// moves sums to memory.
void advance_line(uint pair, bool last, uint m0, uint n0) {
    FetchX x;
    FetchW w;
    barrier();
    later_ = 0u;
    multiply(m0, n0, OF_X, pair + 1u, x, w);
    store_odd();
    barrier();
    multiply(m0, n0, NOTHING, pair + 1u, x, w);
    store_later(x);
    barrier();
    if (!last) {
        FetchX next;
        multiply(m0, n0, OF_X, pair + 2u, next, w);
        store_odd();
        barrier();
        multiply(m0, n0, OF_W, pair + 2u, next, w);
        store_line(next, w);
    } else {
        multiply(m0, n0, NOTHING, 0u, x, w);
        store_odd();
        barrier();
        multiply(m0, n0, NOTHING, 0u, x, w);
    }
}

// quick_bf16: four numbers of bf16, rounded as bf16_pack2 does it, which knows NaN and is slower
// for it.
uint quick_round(uint u) { return u + 0x7FFFu + ((u >> 16) & 1u); }
uvec2 quick_bf16(vec4 v) {
    const float all = (v.x + v.y) + (v.z + v.w); // NaN where one of them is
    const uvec4 u = floatBitsToUint(v);
    uvec2 r = uvec2(highs(quick_round(u.x), quick_round(u.y)), highs(quick_round(u.z), quick_round(u.w)));
    if ((floatBitsToUint(all) & 0x7FFFFFFFu) > 0x7F800000u) r = uvec2(bf16_pack2(v.x, v.y), bf16_pack2(v.z, v.w));
    return r;
}

// finish_whole: finish of lib/linear_tiles.glsl for tiles with all their rows.
void finish_whole(uint split, uint sub, uint lane, uint m0, uint n0) {
    const uint mine = sub * CM_M * OUT_PITCH;
    const uint64_t y_addr = pc.y_addr + uint64_t(split) * pc.tokens * pc.y_stride * 4u;
    const uint ROWS = SUBGROUP / (WN / 4u); // of a tile that a subgroup stores at a time
    const uint m_lane = lane / (WN / 4u), q = lane % (WN / 4u), row = row0_ + n0 + q * 4u;
    const uint skip = first_ - t0_;
    const uint bytes = pc.y_f32 != 0u ? 4u : 2u;
    uint64_t at = y_addr + uint64_t((t0_ + m0 + m_lane) * pc.y_stride + pc.y_column + row) * bytes;
    const uint64_t step = uint64_t(ROWS * pc.y_stride * bytes);
    barrier();
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            coopMatStore(acc[i][j], tile_s, mine + j * CM_N / 4u, OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        [[unroll]] for (uint k = 0u; k < CM_M / ROWS; k++) {
            const uint m = m_lane + k * ROWS;
            vec4 v = uintBitsToFloat(tile_s[mine + m * OUT_PITCH + q]) * CM_UNSCALE;
            if (ROW_SCALES) v *= vec4(row_scale.v[row], row_scale.v[row + 1u], row_scale.v[row + 2u], row_scale.v[row + 3u]);
            if (WEIGHT_REF) v *= uintBitsToFloat(ref());
            if (FRACTIONS) v *= unit_of_sums_;
            if (m0 + i * CM_M + m >= skip) {
                if (pc.y_f32 != 0u) {
                    KvWrite2(at).v = floatBitsToUint(v.xy);
                    KvWrite2(at + 8u).v = floatBitsToUint(v.zw);
                } else KvWrite2(at).v = quick_bf16(v);
            }
            at += step;
        }
        barrier();
    }
}

void main() {
    tid_ = gl_LocalInvocationIndex;
    const uint sub = gl_SubgroupID, lane = gl_SubgroupInvocationID, split = gl_WorkGroupID.z % pc.splits;
    group_ = gl_WorkGroupID.z / pc.splits;
    first_ = gl_WorkGroupID.x * BM;
    t0_ = min(first_, pc.tokens - BM);
    row0_ = group_ * pc.n + gl_WorkGroupID.y * BN + pc.first_row;
    x_lane_ = line_of(X_VEC, X_LINES) * (pc.k / X_VEC * 16u) * (ACT == ACT_BF16 ? pc.groups : 1u);
    w_lane_ = w_line() * (pc.k / W_VEC * 16u);
    const uint m0 = sub / (BN / WN) * WM, n0 = sub % (BN / WN) * WN;
    if (WEIGHT_REF) find_ref();
    uint pair = split * pc.split_steps * (SPAN / PAIR);
    const uint last = min(pair + pc.split_steps * (SPAN / PAIR), pc.k / PAIR) - 1u; // the host makes no empty part
    FetchX x;
    FetchW w;
    [[unroll]] for (uint i = 0u; i < X_EACH; i++) fetch_x(pair, i, x);
    [[unroll]] for (uint i = 0u; i < W_EACH; i++) fetch_w(pair, i, w);
    fetch_scale(pair, w);
    if (LINES) store_line(x, w);
    else store_even(x, w);
    unit_of_sums_ = unit_of_next_ = fraction(w.scale);
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) acc[i][j] = CM_C(0.0);
    }
    // The last line or pair stands apart: a condition between the loads and their use would make
    // the loads wait.
    if (LINES) {
        [[dont_unroll]] for (; pair + 1u < last; pair += 2u) {
            if (FRACTIONS) change_unit();
            advance_line(pair, false, m0, n0);
            if (FRACTIONS) unit_of_next_ = fraction(held_w_.scale);
        }
        if (FRACTIONS) change_unit();
        advance_line(pair, true, m0, n0);
    } else {
        [[dont_unroll]] for (; pair < last; pair++) {
            if (FRACTIONS && pair % BLOCK_PAIRS == 0u) change_unit();
            advance(pair, m0, n0);
            if (FRACTIONS) unit_of_next_ = fraction(held_w_.scale);
        }
        if (FRACTIONS) change_unit();
        barrier();
        multiply(m0, n0, NOTHING, 0u, x, w);
        store_odd();
        barrier();
        multiply(m0, n0, NOTHING, 0u, x, w);
    }
    finish_whole(split, sub, lane, m0, n0);
}
