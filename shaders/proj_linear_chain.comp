// Two linear layers of 1 or 2 tokens in one launch, the second on what the first gives:
//   z = x . w0, y = z . w1, each by groups: the sums of proj_linear_tokens1to8.comp, in its order.
// Shared memory: 516*ROWS*TOKENS + 1032 B, with ROWS*TOKENS >= 4 where JOINED.
// Features: bufferDeviceAddress, shaderInt64; with HALF_CODES shaderFloat16.
// Bindings: by address x [T,G0,K0] bf16; w0, s0, r0 and w1, s1, r1: weights, their scales and those
//   of rows, as in lib/linear.glsl; z [T,G0,N0] = [T,G1,K1] bf16; y [T,y_stride] bf16 or f32, of
//   which columns y_column .. are written; state: below. With JOINED x is written, and heads of
//   HEAD numbers are joined from part_out [T,splits,H,HEAD] f32 and part_ml [T,splits,H,4] f32,
//   with the bits of attn_merge.comp; bound: 0 sink [H] f32, 1 positions [T] i32, 2 table [rows,64]
//   f32.
// Workgroup: 128/LANES * ROWS rows of a group of one layer and TOKENS tokens; with JOINED before
//   those 4*128/JOIN_GROUPS numbers of a head, for which JOIN_GROUPS groups take turns of `ahead`
//   parts.
// Constants after the two of lib/formats.glsl (ACT is bf16): 2 TOKENS, 3 ROWS, 4 LANES as in
//   proj_linear_tokens1to8.comp, 5..7 N, K and groups of the first layer, 8..10 of the second, 11
//   JOINED, 12 MLA_AHEAD, 13 JOIN_GROUPS: opkit.ChainJoin, 14 HEAD, 15 POLLS of a wait, 16 SILENT:
//   the workgroup that gives nothing in a launch of all, for tests; all ones: none.
//
// Workgroups take numbers when they begin, those that join first, then the first layer's. So
// whoever waits, waits for workgroups that have begun, however many have room on the device.
// The first layer also writes z to a half of state that is all ones: a pair of numbers that is not
// ones any more is there. No workgroup waits for what it does not read, and the weights of the
// second layer are on their way meanwhile. x of JOINED goes on to the first layer in the same way,
// in front of z. A launch sets the other half, which the one before had used, to ones again.
// state: word 0, plus 1: the next number, bit 30: a workgroup of this launch gave up, bit 31: the
// half; words 2 and 3 the address of a word for the host, see give_up; from word 64 on two halves
// of half_words. Word 0 and the halves are all ones before the first launch.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ADDRESSED
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
layout(constant_id = 11) const bool JOINED = false;
layout(constant_id = 12) const uint MLA_AHEAD = 5u;
layout(constant_id = 13) const uint JOIN_GROUPS = 4u;
layout(constant_id = 14) const uint HEAD = 512u;
layout(constant_id = 15) const uint POLLS = 1u << 21;
layout(constant_id = 16) const uint SILENT = 0xFFFFFFFFu;
#include "lib/mla_join.glsl"

layout(push_constant) uniform Push {
    uint64_t state_addr;
    uint64_t x_addr;
    uint64_t z_addr;
    uint64_t y_addr;
    uint64_t w0_addr;
    uint64_t s0_addr;
    uint64_t r0_addr;
    uint64_t w1_addr;
    uint64_t s1_addr;
    uint64_t r1_addr;
    uint64_t part_out_addr;
    uint64_t part_ml_addr;
    uint tokens;     // at most TOKENS
    uint half_words; // at least TOKENS*G0*N0/2, and with JOINED TOKENS*G0*K0/2 more
    uint y_stride;
    uint y_column;
    uint flags;
    uint splits;
    uint table_rows;
    uint ahead; // parts that a group takes at a time, at most MLA_AHEAD
} pc;
layout(std430, set = 0, binding = 0) readonly buffer Sink { uint sink[]; };
layout(std430, set = 0, binding = 1) readonly buffer Positions { int positions[]; };
layout(std430, set = 0, binding = 2) readonly buffer Table { uvec2 table[]; };

#include "lib/linear_rows.glsl"
#include "lib/linear_quads.glsl"

// multiply: q, scales included, with the numbers of each token that belong to it and the scale of
// these.
void multiply(Quads q, uvec4 x[TOKENS][X_QUADS], float x_factor[TOKENS]) {
    float block[ROWS][BLOCKS];
#include "lib/linear_products.glsl"
}

// add_up: the sums of a team's invocations, of row v % ROWS and the next one and token v / ROWS;
// true in the invocation that has them.
bool add_up(out uint team, out uint v, out vec2 y) {
    const uint tid = gl_LocalInvocationIndex;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) sum_s[(t * ROWS + r) * PITCH + tid] = acc[r][t];
    }
    barrier();
    const uint pair = tid / PARTS, part = tid % PARTS;
    team = pair / (SUMS / 2u);
    v = pair % (SUMS / 2u) * 2u;
    vec2 sum = vec2(0.0);
    for (uint l = part; l < LANES; l += PARTS) {
        sum += vec2(sum_s[v * PITCH + team * LANES + l], sum_s[(v + 1u) * PITCH + team * LANES + l]);
    }
    pair_s[tid] = sum;
    for (uint s = PARTS / 2u; s > 0u; s /= 2u) {
        barrier();
        if (part < s) pair_s[tid] += pair_s[tid + s];
    }
    y = pair_s[tid] * (WEIGHT_UNSCALE * ACT_UNSCALE);
    return part == 0u;
}

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer ChainRead4 { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent volatile readonly buffer ChainLook4 { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent volatile readonly buffer ChainLook1 { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer ChainRead2 { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 8) coherent writeonly buffer ChainWrite2 { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent writeonly buffer ChainWrite1 { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer ChainState { uint taken; };

const uint NOTHING = 0xFFFFFFFFu, HALVES = 256u; // byte
const uint Y_F32 = 1u, HAS_SINK = 2u, TURN = 4u, TOGETHER = 8u; // flags
const uint GAVE_UP = 1u << 30;                                  // of state
const uint HEADS = GROUPS0 * K0 / HEAD;
const uint JOIN_LANES = 128u / JOIN_GROUPS, SHARES = HEAD / 4u / JOIN_LANES; // invocations of a group; workgroups of a head
const uint TILES0 = (N0 + TEAMS * ROWS - 1u) / (TEAMS * ROWS), TILES1 = (N1 + TEAMS * ROWS - 1u) / (TEAMS * ROWS);
const uint JOINS = JOINED ? TOKENS * HEADS * SHARES : 0u;
const uint FIRST = TILES0 * GROUPS0, PRODUCTS = FIRST + TILES1 * GROUPS1, ALL = JOINS + PRODUCTS;
const uint X_WORDS = JOINED ? TOKENS * GROUPS0 * K0 / 2u : 0u; // of a half, in front of z

shared uint turn_s, half_s, patience_s;

// The layer of this workgroup.
bool second_;
uint n_, k_, groups_;
uint64_t x_at_, w_at_, scales_at_, row_scales_at_;

#define SCALE_WORD(i) KvRead1(scales_at_ + uint64_t(i) * 4u).v
#define ROW_LENGTH k_
#include "lib/linear_scales.glsl"

void fetch(uint row0, uint k, out Quads q) {
    const uint w0 = row0 * (k_ / VEC) + k / VEC;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        q.w[r] = ChainRead4(w_at_ + uint64_t(w0 + r * (k_ / VEC)) * 16u).v;
        q.beside[r] = ROWWISE ? w_beside(row0 + r, k) : uvec2(0u);
    }
    q.scale = STEP_SUMS ? w_block_bits(row0, k) : 0u;
}

bool there(uvec4 x[X_QUADS]) {
    bool all_ = true;
    [[unroll]] for (uint i = 0u; i < X_QUADS; i++) all_ = all_ && !any(equal(x[i], uvec4(NOTHING)));
    return all_;
}

// give_up: after POLLS looks in vain this workgroup goes on without what it waited for, and waits
// no more. Those that begin later do not either, and the host is told.
void give_up() {
    patience_s = 0u;
    atomicOr(ChainState(pc.state_addr).taken, GAVE_UP);
    const uvec2 host = ChainRead2(pc.state_addr + 8u).v;
    ChainWrite1(packUint2x32(host)).v = turn_s + 1u;
}

bool silent() { return SILENT != NOTHING && turn_s == SILENT && (pc.flags & TOGETHER) != 0u; }

// accumulate: the quads at k, scales included. What other workgroups give may have been cached
// before it was there: later looks go by the cache.
void accumulate(uint group, uint k, Quads q) {
    uvec4 x[TOKENS][X_QUADS];
    float x_factor[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        const uint64_t at = x_at_ + uint64_t(((min(t, pc.tokens - 1u) * groups_ + group) * k_ + k) / 8u) * 16u;
        const bool awaited = JOINED || second_;
        if (awaited && gl_LocalInvocationIndex % 16u == 0u) { // some first: looks of all would keep busy what the numbers come by
            [[dont_unroll]] for (uint looks = 0u; ChainLook1(at + 12u).v == NOTHING && looks < patience_s; looks++) {}
        }
        [[unroll]] for (uint i = 0u; i < X_QUADS; i++) x[t][i] = ChainRead4(at + 16u * i).v;
        if (awaited) {
            [[dont_unroll]] for (uint looks = 0u; !there(x[t]); looks++) {
                if (looks >= patience_s) {
                    give_up();
                    break;
                }
                [[unroll]] for (uint i = 0u; i < X_QUADS; i++) x[t][i] = ChainLook4(at + 16u * i).v;
            }
        }
        x_factor[t] = 1.0;
    }
    multiply(q, x, x_factor);
}

// present: pairs of numbers with other bits than those of what is not there; NaNs both.
uvec2 present(uvec2 w) { return mix(w, uvec2(NOTHING - 1u), equal(w, uvec2(NOTHING))); }

// join: as attn_merge.comp, with the bits of its sums.
void join(uint turn, uint64_t x_at) {
    const uint tid = gl_LocalInvocationIndex, group = tid / JOIN_LANES, lane = turn % SHARES * JOIN_LANES + tid % JOIN_LANES;
    const uint head = turn / SHARES % HEADS, t = turn / SHARES / HEADS;
    if (t >= pc.tokens) return;
    const uint first = t * pc.splits * HEADS + head, last = pc.splits - 1u; // part i: first + i*HEADS
    const uint sink_bits = sink[head];
    const bool turns = (pc.flags & TURN) != 0u && lane >= (HEAD - 2u * ROPE_PAIRS) / 4u; // two pairs
    MlaJoined j = mla_nothing();
    uvec2 c = uvec2(0u), s = uvec2(0u);
    [[dont_unroll]] for (uint base = group * pc.ahead; base <= last; base += JOIN_GROUPS * pc.ahead) {
        vec4 x[MLA_AHEAD];
        vec2 part[MLA_AHEAD];
        [[unroll]] for (uint k = 0u; k < MLA_AHEAD; k++) {
            const uint at = first + min(base + k, last) * HEADS;
            part[k] = uintBitsToFloat(ChainRead2(pc.part_ml_addr + uint64_t(at) * 16u).v);
            x[k] = uintBitsToFloat(ChainRead4(pc.part_out_addr + uint64_t(at * (HEAD / 4u) + lane) * 16u).v);
        }
        if (turns) {
            const uint angle = uint(clamp(positions[t], 0, int(pc.table_rows) - 1)) * ROPE_PAIRS + lane % 16u;
            c = table[angle];
            s = table[angle + ROPE_PAIRS / 2u];
        }
        [[unroll]] for (uint k = 0u; k < MLA_AHEAD; k++) {
            if (k >= pc.ahead || base + k > last) part[k].y = 0.0;
        }
        mla_take(j, part, x);
    }
    pair_s[tid] = vec2(j.m, j.l);
    [[unroll]] for (uint e = 0u; e < 4u; e++) sum_s[e * PITCH + tid] = j.acc[e];
    barrier();
    if (group > 0u) return;
    float m = j.m;
    [[unroll]] for (uint g = 1u; g < JOIN_GROUPS; g++) m = max(m, pair_s[g * JOIN_LANES].x);
    mla_raise(j, m);
    [[unroll]] for (uint g = 1u; g < JOIN_GROUPS; g++) {
        const uint i = g * JOIN_LANES + tid;
        mla_add(j, pair_s[i], vec4(sum_s[i], sum_s[PITCH + i], sum_s[2u * PITCH + i], sum_s[3u * PITCH + i]));
    }
    const uvec2 w = mla_words(j, (pc.flags & HAS_SINK) != 0u ? mla_sink(sink_bits) : MLA_NO_SINK, turns, c, s);
    const uint64_t at = uint64_t((t * HEADS + head) * (HEAD / 4u) + lane) * 8u;
    ChainWrite2(x_at + at).v = present(w);
    KvWrite2(pc.x_addr + at).v = w;
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    if (tid == 0u) {
        const uint taken = atomicAdd(ChainState(pc.state_addr).taken, 1u) + 1u;
        turn_s = taken & (GAVE_UP - 1u);
        half_s = taken >> 31;
        patience_s = (taken & GAVE_UP) != 0u ? 0u : POLLS;
        if (turn_s == ALL - 1u) ChainState(pc.state_addr).taken = ((half_s ^ 1u) << 31) - 1u;
    }
    barrier();
    uint turn = turn_s;
    const uint64_t halves = pc.state_addr + HALVES;
    const uint64_t now = halves + uint64_t(half_s * pc.half_words) * 4u, next = halves + uint64_t((half_s ^ 1u) * pc.half_words) * 4u;
    if (turn < JOINS) {
        if (!silent()) join(turn, now);
        return;
    }
    turn -= JOINS;
    [[dont_unroll]] for (uint i = turn * 128u + tid; i < pc.half_words; i += PRODUCTS * 128u) KvWrite1(next + uint64_t(i) * 4u).v = NOTHING;

    second_ = turn >= FIRST;
    n_ = second_ ? N1 : N0;
    k_ = second_ ? K1 : K0;
    groups_ = second_ ? GROUPS1 : GROUPS0;
    const uint64_t z_at = now + uint64_t(X_WORDS) * 4u;
    x_at_ = second_ ? z_at : JOINED ? now : pc.x_addr;
    w_at_ = second_ ? pc.w1_addr : pc.w0_addr;
    scales_at_ = second_ ? pc.s1_addr : pc.s0_addr;
    row_scales_at_ = second_ ? pc.r1_addr : pc.r0_addr;
    const uint group = second_ ? (turn - FIRST) / TILES1 : turn / TILES0;
    const uint first = (second_ ? (turn - FIRST) % TILES1 : turn % TILES0) * TEAMS * ROWS;
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
    if (ROW_SCALES)
        y *= uintBitsToFloat(uvec2(KvRead1(row_scales_at_ + uint64_t(row) * 4u).v, KvRead1(row_scales_at_ + uint64_t(row) * 4u + 4u).v));
    if (!second_) {
        if (silent()) return;
        const uint i = (token * groups_ * n_ + row) / 2u, word = bf16_pack2(y.x, y.y);
        ChainWrite1(z_at + uint64_t(i) * 4u).v = word == NOTHING ? NOTHING - 1u : word; // NaNs both
        KvWrite1(pc.z_addr + uint64_t(i) * 4u).v = word;
    } else {
        const uint i = token * pc.y_stride + pc.y_column + row;
        if ((pc.flags & Y_F32) != 0u) KvWrite2(pc.y_addr + uint64_t(i) * 4u).v = floatBitsToUint(y);
        else KvWrite1(pc.y_addr + uint64_t(i >> 1) * 4u).v = bf16_pack2(y.x, y.y);
    }
}
