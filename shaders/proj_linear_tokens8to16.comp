// A linear layer for 8 or 16 tokens a workgroup, without matrices:
//   y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// Shared memory: max(4*TOKENS*LANES*VEC, 2048*ROWS + 8*LANES + 1024) B, at most 16384.
// Features: none; with KV_DA bufferDeviceAddress, shaderInt64.
// Bindings: 0 to 5 of lib/linear.glsl; KV_DA builds reach x, w and y by address. With splits, part
//   s of k goes to an f32 y of its own.
// Workgroup: 128/LANES * ROWS rows (x) of group z / splits and TOKENS tokens (y). As in
//   proj_linear_tokens1to8.comp LANES invocations share ROWS rows, and decode each weight once for
//   all tokens. x of a step lies in shared memory, decoded.
// Constants after the two of lib/linear_format.glsl: 2 TOKENS (4, 8 or 16), 3 ROWS (2 or 4), 4
//   LANES: powers of two, with VEC numbers in 16 bytes TOKENS*LANES*VEC <= 4096; 5 UNROLL, eights
//   of a quad that are multiplied without a loop, a divisor of VEC/8.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/linear.glsl"
#include "lib/linear_f32.glsl"
#include "lib/linear_act.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 2) const uint TOKENS = 4u;
layout(constant_id = 3) const uint ROWS = 4u;
layout(constant_id = 4) const uint LANES = 8u;
layout(constant_id = 5) const uint UNROLL = 1u;

const uint VEC = WEIGHT_QUAD;
const uint UNITS = VEC / 8u;
const uint STEP = LANES * VEC;
const uint TEAMS = 128u / LANES;
const uint X_UNITS = TOKENS * STEP / 8u, MINE = (X_UNITS + 127u) / 128u; // eights of x of a step: of all, of an invocation

const uint FOUR = 4u, SUMS = ROWS * FOUR; // sums of four tokens at a time meet
const uint PAIRS = TEAMS * SUMS / 2u; // of outputs
const uint PARTS = 128u / PAIRS;      // invocations that sum a pair
const uint PITCH = 128u + PARTS;      // so that they read what lies side by side
const uint PAIR_AT = SUMS * PITCH;
const uint X_ROOM = TOKENS * STEP / 4u, SUM_ROOM = (PAIR_AT + 256u) / 4u;

shared vec4 room_s[X_ROOM > SUM_ROOM ? X_ROOM : SUM_ROOM]; // x [TOKENS, VEC/4, LANES]; then sums [SUMS, PITCH] and pairs [128, 2] of floats

float acc[ROWS][TOKENS];

// The quad at k of each row as it is stored.
struct Quads {
    uvec4 w[ROWS];
    uint codes[ROWS]; // NVFP4: of two scales
    uint scale;       // FP8: bits of the scale, one for all rows: they begin at a multiple of ROWS, and so lie in one block
};

// What an invocation loads of x, in eights as they are stored. Of E4M3 the quad has eight more.
struct Eights {
    uvec4 q[MINE];
    uint scale[MINE];
};

// fetch_w: zeros behind the last number.
void fetch_w(uint row0, uint k, out Quads v) {
    const bool there = k < pc.k;
    const uint w0 = row0 * (pc.k / VEC) + k / VEC;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        v.w[r] = there ? w_quad(w0 + r * (pc.k / VEC)) : uvec4(0u);
        v.codes[r] = FORMAT == WEIGHT_NVFP4 && there ? w_nv_scale(row0 + r, k) : 0u;
    }
    v.scale = FP8_WEIGHT && there ? w_block_bits(row0, k) : 0u;
}

// eight_of: what the u-th invocation loads of a token's step. Neighbours keep it side by side.
uint eight_of(uint u) { return u % LANES * UNITS + u / LANES % UNITS; }

// fetch_x: of the step at k0, zeros behind the last number.
void fetch_x(uint t0, uint group, uint k0, out Eights v) {
    [[unroll]] for (uint i = 0u; i < MINE; i++) {
        const uint u = i * 128u + gl_LocalInvocationIndex, k = k0 + eight_of(u) * 8u;
        v.q[i] = uvec4(0u);
        v.scale[i] = 0u;
        if (k < pc.k && u < X_UNITS) {
            const uint token = min(t0 + u / (STEP / 8u), pc.tokens - 1u), at = x_row(token, group) * (pc.k / 8u) + k / 8u;
            v.q[i] = x_eight(at);
            v.scale[i] = x_eight_scale(token, group, k);
        }
    }
}

// keep_x: in fours, those of neighbouring lanes side by side.
void keep_x(Eights v) {
    [[unroll]] for (uint i = 0u; i < MINE; i++) {
        const uint u = i * 128u + gl_LocalInvocationIndex;
        if (u < X_UNITS) {
            const uint at = u / LANES * 2u * LANES + u % LANES;
            const float scale = ACT == ACT_BF16 ? 1.0 : uintBitsToFloat(v.scale[i]);
            vec4 a, b;
            x_decode(v.q[i], eight_of(u), a, b);
            room_s[at] = a * scale;
            room_s[at + LANES] = b * scale;
        }
    }
}

// accumulate8: the products of numbers 8*u .. 8*u+7 of a quad of each row.
void accumulate8(Quads q, uint u) {
    vec4 wa[ROWS], wb[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        weight8(q.w[r], u, wa[r], wb[r]);
        if (FORMAT != WEIGHT_BF16) {
            const float scale = FORMAT == WEIGHT_NVFP4 ? e4m3_decode(q.codes[r] >> (u / 2u * 8u)) : uintBitsToFloat(q.scale);
            wa[r] *= scale;
            wb[r] *= scale;
        }
    }
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        const uint at = (t * UNITS + u) * 2u * LANES + gl_LocalInvocationIndex % LANES;
        const vec4 xa = room_s[at], xb = room_s[at + LANES];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            [[unroll]] for (uint e = 0u; e < 4u; e++) acc[r][t] += wa[r][e] * xa[e];
            [[unroll]] for (uint e = 0u; e < 4u; e++) acc[r][t] += wb[r][e] * xb[e];
        }
    }
}

float sum_at(uint i) { return room_s[i / 4u][i % 4u]; }
void keep_sum(uint i, float v) { room_s[i / 4u][i % 4u] = v; }

// place: of sum i, the first of all pairs before the second of all.
uint place(uint i) { return (i % 2u * (SUMS / 2u) + i / 2u) * PITCH; }

// meet: the sums of four tokens from t4 on, each of two neighbouring rows to one invocation of
// several.
vec2 meet(uint t4, uint team, uint v, uint part) {
    const uint tid = gl_LocalInvocationIndex;
    barrier();
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < FOUR; t++) keep_sum(place(t * ROWS + r) + tid, acc[r][t4 + t]);
    }
    barrier();
    vec2 sum = vec2(0.0);
    for (uint l = part; l < LANES; l += PARTS)
        sum += vec2(sum_at(place(v) + team * LANES + l), sum_at(place(v + 1u) + team * LANES + l));
    for (uint s = PARTS / 2u; s > 0u; s /= 2u) {
        keep_sum(PAIR_AT + tid, sum.x);
        keep_sum(PAIR_AT + 128u + tid, sum.y);
        barrier();
        if (part < s) sum += vec2(sum_at(PAIR_AT + tid + s), sum_at(PAIR_AT + 128u + tid + s));
        barrier();
    }
    return sum;
}

void main() {
    const uint tid = gl_LocalInvocationIndex, lane = tid % LANES;
    const uint group = gl_WorkGroupID.z / pc.splits, split = gl_WorkGroupID.z % pc.splits;
    const uint begin = split * pc.split_steps * STEP, end = min(begin + pc.split_steps * STEP, pc.k);
    const uint t0 = gl_WorkGroupID.y * TOKENS, first = gl_WorkGroupID.x * TEAMS * ROWS;
    // Behind the last row the last ones are read again: every invocation has to reach the barriers.
    const uint row0 = group * pc.n + min(first + tid / LANES * ROWS, pc.n - ROWS);
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) acc[r][t] = 0.0;
    }
    Quads w;
    Eights x;
    fetch_x(t0, group, begin, x);
    fetch_w(row0, begin + lane * VEC, w);
    [[dont_unroll]] for (uint k = begin; k < end; k += STEP) {
        barrier();
        keep_x(x);
        barrier();
        Quads next;
        fetch_x(t0, group, k + STEP, x);
        fetch_w(row0, k + STEP + lane * VEC, next);
        [[dont_unroll]] for (uint u = 0u; u < UNITS; u += UNROLL) {
            [[unroll]] for (uint i = 0u; i < UNROLL; i++) accumulate8(w, u + i);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            w.w[r] = next.w[r];
            w.codes[r] = next.codes[r];
        }
        w.scale = next.scale;
    }

    const uint pair = tid / PARTS, part = tid % PARTS, team = pair / (SUMS / 2u), v = pair % (SUMS / 2u) * 2u;
    const uint n = first + team * ROWS + v % ROWS, row = group * pc.n + n;
    [[unroll]] for (uint t4 = 0u; t4 < TOKENS; t4 += FOUR) {
        const vec2 sum = meet(t4, team, v, part);
        const uint token = t0 + t4 + v / ROWS;
        if (part == 0u && n < pc.n && token < pc.tokens) {
            vec2 y = sum * (WEIGHT_UNSCALE * X_UNSCALE);
            if (ROW_SCALES) y *= vec2(row_scale.v[row], row_scale.v[row + 1u]);
            y_store2(split * pc.tokens + token, row, y.x, y.y);
        }
    }
}
