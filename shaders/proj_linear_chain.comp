// Two linear layers of few tokens in one launch, the second on what the first gives: z = x . w0 by groups, y = z . w1 by groups; see
// proj_linear_few.comp, whose sums these are, in its order.
// by address: x [T,G0,K0] bf16   w0, s0, r0 and w1, s1, r1: weights, their scales and those of rows, as in lib/linear.glsl
//   z [T,G0,N0] = [T,G1,K1] bf16   y [T,y_stride] bf16 or f32, of which columns y_column .. are written   state: below
// One workgroup: 128/LANES * ROWS rows of a group of one layer and all of TOKENS tokens. Workgroups take numbers when they begin, those of
//   the first layer first: in which order gl_WorkGroupID begins, nothing says. So whoever waits, waits for workgroups that have begun, and
//   how many have room on the device does not matter.
//   The first layer also writes z to a half of state that is all ones; a pair of numbers that is not ones any more is there. So the weights
//   of the second layer are on their way while the last numbers of the first one are made, and no workgroup waits for what it does not read.
//   A launch sets the other half, which the one before had used, to ones again. Which half is whose turn, the counter says.
// state: word 0, plus 1: the next number, bit 31: the half; from word 64 on two halves of half_words, all ones before the first launch.
// Constants after the two of lib/linear.glsl (ACT is bf16): 2 TOKENS, 3 ROWS, 4 LANES as there; 5..7 N, K and groups of the first layer,
//   8..10 of the second.
// Shared memory: 516*ROWS*TOKENS + 1032 B.
// Features: bufferDeviceAddress, shaderInt64; with LINEAR_F16 shaderFloat16.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define LINEAR_CHAIN
#include "lib/linear_f32.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 2) const uint TOKENS = 1u;
layout(constant_id = 3) const uint ROWS = 4u;
layout(constant_id = 4) const uint LANES = 32u;
layout(constant_id = 5) const uint N0 = 8u;
layout(constant_id = 6) const uint K0 = 32u;
layout(constant_id = 7) const uint GROUPS0 = 1u;
layout(constant_id = 8) const uint N1 = 8u;
layout(constant_id = 9) const uint K1 = 32u;
layout(constant_id = 10) const uint GROUPS1 = 1u;

layout(push_constant) uniform Push {
    KV_ADDR state_addr;
    KV_ADDR x_addr;
    KV_ADDR z_addr;
    KV_ADDR y_addr;
    KV_ADDR w0_addr;
    KV_ADDR s0_addr;
    KV_ADDR r0_addr;
    KV_ADDR w1_addr;
    KV_ADDR s1_addr;
    KV_ADDR r1_addr;
    uint tokens;     // at most TOKENS
    uint half_words; // at least TOKENS*G0*N0/2
    uint y_stride;
    uint y_column;
    uint y_f32;
} pc;

#include "lib/linear_few.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer ChainRead4 { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent volatile readonly buffer ChainLook4 { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent writeonly buffer ChainWrite1 { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer ChainState { uint taken; };

const uint NOTHING = 0xFFFFFFFFu, HALVES = 256u; // byte
const uint TILES0 = (N0 + TEAMS * ROWS - 1u) / (TEAMS * ROWS), TILES1 = (N1 + TEAMS * ROWS - 1u) / (TEAMS * ROWS);
const uint FIRST = TILES0 * GROUPS0, ALL = FIRST + TILES1 * GROUPS1;

shared uint turn_s, half_s;

// The layer of this workgroup.
bool second_;
uint n_, k_, groups_;
uint64_t x_at_, w_at_, scales_at_, row_scales_at_;

uint scale_word(uint i) { return KvRead1(scales_at_ + uint64_t(i) * 4u).v; }

void fetch(uint row0, uint k, out Quads q) {
    const uint w0 = row0 * (k_ / VEC) + k / VEC;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        q.w[r] = ChainRead4(w_at_ + uint64_t(w0 + r * (k_ / VEC)) * 16u).v;
        const uint i = (row0 + r) * (k_ / 16u) + k / 16u;
        q.codes[r] = FORMAT == WEIGHT_NVFP4 ? scale_word(i >> 2) >> ((i & 3u) * 8u) : 0u;
    }
    q.scale = 0u;
    if (FP8_WEIGHT) {
        const uint i = row0 / SCALE_BLOCK * ((k_ + SCALE_BLOCK - 1u) / SCALE_BLOCK) + k / SCALE_BLOCK;
        q.scale = FORMAT == WEIGHT_FP8 ? scale_word(i) : (scale_word(i >> 2) >> ((i & 3u) * 8u) & 0xFFu) << 23;
    }
}

bool there(uvec4 x[X_QUADS]) {
    bool all_ = true;
    [[unroll]] for (uint i = 0u; i < X_QUADS; i++) all_ = all_ && !any(equal(x[i], uvec4(NOTHING)));
    return all_;
}

// accumulate: the quads at k, scales included. What the first layer gives may have been cached before it was there: later looks go by the cache.
void accumulate(uint group, uint k, Quads q) {
    uvec4 x[TOKENS][X_QUADS];
    float x_factor[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        const uint64_t at = x_at_ + uint64_t(((min(t, pc.tokens - 1u) * groups_ + group) * k_ + k) / 8u) * 16u;
        [[unroll]] for (uint i = 0u; i < X_QUADS; i++) x[t][i] = ChainRead4(at + 16u * i).v;
        if (second_) {
            [[dont_unroll]] while (!there(x[t])) {
                [[unroll]] for (uint i = 0u; i < X_QUADS; i++) x[t][i] = ChainLook4(at + 16u * i).v;
            }
        }
        x_factor[t] = 1.0;
    }
    multiply(q, x, x_factor);
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    if (tid == 0u) {
        const uint taken = atomicAdd(ChainState(pc.state_addr).taken, 1u) + 1u;
        turn_s = taken & 0x7FFFFFFFu;
        half_s = taken >> 31;
        if (turn_s == ALL - 1u) ChainState(pc.state_addr).taken = ((half_s ^ 1u) << 31) - 1u;
    }
    barrier();
    const uint turn = turn_s;
    const uint64_t halves = pc.state_addr + HALVES, now = halves + uint64_t(half_s * pc.half_words) * 4u, next = halves + uint64_t((half_s ^ 1u) * pc.half_words) * 4u;
    [[dont_unroll]] for (uint i = turn * 128u + tid; i < pc.half_words; i += ALL * 128u) KvWrite1(next + uint64_t(i) * 4u).v = NOTHING;

    second_ = turn >= FIRST;
    n_ = second_ ? N1 : N0;
    k_ = second_ ? K1 : K0;
    groups_ = second_ ? GROUPS1 : GROUPS0;
    x_at_ = second_ ? now : pc.x_addr;
    w_at_ = second_ ? pc.w1_addr : pc.w0_addr;
    scales_at_ = second_ ? pc.s1_addr : pc.s0_addr;
    row_scales_at_ = second_ ? pc.r1_addr : pc.r0_addr;
    const uint group = second_ ? (turn - FIRST) / TILES1 : turn / TILES0, first = (second_ ? (turn - FIRST) % TILES1 : turn % TILES0) * TEAMS * ROWS;
    // Behind the last row the last ones are read again: every invocation has to reach the barriers.
    const uint row0 = group * n_ + min(first + tid / LANES * ROWS, n_ - ROWS);
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) acc[r][t] = 0.0;
    }
    [[dont_unroll]] for (uint k = tid % LANES * VEC; k < k_; k += LANES * VEC) {
        Quads q;
        fetch(row0, k, q);
        accumulate(group, k, q);
    }

    uint team, v;
    vec2 y;
    const bool mine = add_up(team, v, y);
    const uint n = first + team * ROWS + v % ROWS, token = v / ROWS;
    if (!mine || n >= n_ || token >= pc.tokens) return;
    const uint row = group * n_ + n;
    if (FORMAT == WEIGHT_NVFP4) y *= uintBitsToFloat(uvec2(KvRead1(row_scales_at_ + uint64_t(row) * 4u).v, KvRead1(row_scales_at_ + uint64_t(row) * 4u + 4u).v));
    if (!second_) {
        const uint i = (token * groups_ * n_ + row) / 2u, word = bf16_pack2(y.x, y.y);
        ChainWrite1(now + uint64_t(i) * 4u).v = word == NOTHING ? NOTHING - 1u : word; // NaNs both
        KvWrite1(pc.z_addr + uint64_t(i) * 4u).v = word;
    } else {
        const uint i = token * pc.y_stride + pc.y_column + row;
        if (pc.y_f32 != 0u) KvWrite2(pc.y_addr + uint64_t(i) * 4u).v = floatBitsToUint(y);
        else KvWrite1(pc.y_addr + uint64_t(i >> 1) * 4u).v = bf16_pack2(y.x, y.y);
    }
}
