// A linear layer for 8 or 16 tokens a workgroup, without matrices:
//   y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// Shared memory: max(4*TOKENS*LANES*VEC, 2048*ROWS + 8*LANES + 1024) B, at most 16384; with DOT2
//   x takes half as much.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64; with DOT2 shaderFloat16,
//   shaderMixedFloatDotProductFloat16AccFloat32.
// Bindings: 0 to 5 of lib/linear.glsl; x, w and y with ADDRESSED by address. With splits, part
//   s of k goes to an f32 y of its own.
// Workgroup: 128/LANES * ROWS rows (x) of group z / splits and TOKENS tokens (y). As in
//   proj_linear_tokens1to8.comp LANES invocations share ROWS rows, and decode each weight once for
//   all tokens. x of a step lies in shared memory, decoded.
// Constants after the two of lib/formats.glsl: 2 TOKENS (4, 8 or 16), 3 ROWS (2 or 4), 4
//   LANES: powers of two, with VEC numbers in 16 bytes TOKENS*LANES*VEC <= 4096; 5 UNROLL, eights
//   of a quad that are multiplied without a loop, a divisor of VEC/8; DOT2 and STEP_SUMS: all.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/linear.glsl"
#include "lib/linear_cm.glsl"
#include "lib/linear_f32.glsl"
#include "lib/linear_act.glsl"
#include "lib/dot2.glsl"

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
const uint X_EACH = HALVES ? 8u : 4u; // numbers of x in 16 bytes: f16, or f32
const uint X_ROOM = TOKENS * STEP / X_EACH, SUM_ROOM = (PAIR_AT + 256u) / 4u;

// x [TOKENS, VEC/X_EACH, LANES]; then sums [SUMS, PITCH] and pairs [128, 2] of floats.
shared uvec4 room_s[X_ROOM > SUM_ROOM ? X_ROOM : SUM_ROOM];

#include "lib/linear_quads.glsl"

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
        v.beside[r] = ROWWISE && there ? w_beside(row0 + r, k) : uvec2(0u);
    }
    v.scale = STEP_SUMS && there ? w_block_bits(row0, k) : 0u;
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

#ifdef DOT2
// Pairs of x are of the numbers whose codes of weights one mask takes.
uint lows(uint a, uint b) { return (a & 0xFFFFu) | b << 16; }
uint highs(uint a, uint b) { return a >> 16 | (b & 0xFFFF0000u); }
uint times(uint pair, float16_t factor) { return packFloat2x16(unpackFloat2x16(pair) * factor); }

#define FORMAT_ORDER
#define FORMAT_HALVES
#include "lib/format_list.glsl"

// paired: of eight numbers in order.
uvec4 paired(uvec4 v) {
#define CASE_ORDER(upper, lower) if (CODEC == CODEC_##upper) return lower##_order(v);
    CODECS(CASE_ORDER)
    return v;
}

// keep_x: in eights, those of neighbouring lanes side by side.
void keep_x(Eights v) {
    [[unroll]] for (uint i = 0u; i < MINE; i++) {
        const uint u = i * 128u + gl_LocalInvocationIndex;
        if (ACT != ACT_BF16 && (eight_of(u) & 1u) != 0u) v.q[i].xy = v.q[i].zw;
        if (u < X_UNITS) room_s[u] = paired(linear_act8(v.q[i], v.scale[i]));
    }
}

// weight_pairs: numbers 8*u .. 8*u+7 of row r's quad. Scales of STEP_SUMS are their sums'.
uvec4 weight_pairs(Quads q, uint r, uint u) {
    const uvec4 w = weight_eight(q.w[r], u);
#define CASE_HALVES(upper, lower) if (CODEC == CODEC_##upper) return lower##_halves(w, q.beside[r], u / EIGHTS_PER_SCALE);
    CODECS(CASE_HALVES)
    return w;
}

// A sum of a quad is multiplied by the scale.
const bool QUAD_SUMS = STEP_SUMS && STORED_SCALES;

// accumulate: the products of eights u .. u+UNROLL-1 of a quad of each row.
void accumulate(Quads q, uint u) {
    uvec4 w[ROWS][UNROLL];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint i = 0u; i < UNROLL; i++) w[r][i] = weight_pairs(q, r, u + i);
    }
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        float sum[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) sum[r] = QUAD_SUMS ? 0.0 : acc[r][t];
        [[unroll]] for (uint i = 0u; i < UNROLL; i++) {
            const uvec4 x = room_s[(t * UNITS + u + i) * LANES + gl_LocalInvocationIndex % LANES];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                [[unroll]] for (uint e = 0u; e < 4u; e++) sum[r] = dot2(unpackFloat2x16(w[r][i][e]), unpackFloat2x16(x[e]), sum[r]);
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) acc[r][t] = QUAD_SUMS ? fma(sum[r], uintBitsToFloat(q.scale), acc[r][t]) : sum[r];
    }
}

#else
// keep_x: as f32 in fours, those of neighbouring lanes side by side.
void keep_x(Eights v) {
    [[unroll]] for (uint i = 0u; i < MINE; i++) {
        const uint u = i * 128u + gl_LocalInvocationIndex;
        if (u < X_UNITS) {
            const uint at = u / LANES * 2u * LANES + u % LANES;
            const float scale = ACT == ACT_BF16 ? 1.0 : uintBitsToFloat(v.scale[i]);
            vec4 a, b;
            x_decode(v.q[i], eight_of(u), a, b);
            room_s[at] = floatBitsToUint(a * scale);
            room_s[at + LANES] = floatBitsToUint(b * scale);
        }
    }
}

// accumulate8: the products of numbers 8*u .. 8*u+7 of a quad of each row.
void accumulate8(Quads q, uint u) {
    vec4 wa[ROWS], wb[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        weight8(q.w[r], u, q.beside[r], wa[r], wb[r]);
        if (!UNSCALED) {
            const float scale = ROWWISE ? weight_factor(q.beside[r], u / EIGHTS_PER_SCALE) : uintBitsToFloat(q.scale);
            wa[r] *= scale;
            wb[r] *= scale;
        }
    }
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        const uint at = (t * UNITS + u) * 2u * LANES + gl_LocalInvocationIndex % LANES;
        const vec4 xa = uintBitsToFloat(room_s[at]), xb = uintBitsToFloat(room_s[at + LANES]);
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            [[unroll]] for (uint e = 0u; e < 4u; e++) acc[r][t] += wa[r][e] * xa[e];
            [[unroll]] for (uint e = 0u; e < 4u; e++) acc[r][t] += wb[r][e] * xb[e];
        }
    }
}

void accumulate(Quads q, uint u) {
    [[unroll]] for (uint i = 0u; i < UNROLL; i++) accumulate8(q, u + i);
}
#endif

float sum_at(uint i) { return uintBitsToFloat(room_s[i / 4u][i % 4u]); }
void keep_sum(uint i, float v) { room_s[i / 4u][i % 4u] = floatBitsToUint(v); }

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
        [[dont_unroll]] for (uint u = 0u; u < UNITS; u += UNROLL) accumulate(w, u);
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            w.w[r] = next.w[r];
            w.beside[r] = next.beside[r];
        }
        w.scale = next.scale;
    }

    const uint pair = tid / PARTS, part = tid % PARTS, team = pair / (SUMS / 2u), v = pair % (SUMS / 2u) * 2u;
    const uint n = first + team * ROWS + v % ROWS, row = group * pc.n + n;
    [[unroll]] for (uint t4 = 0u; t4 < TOKENS; t4 += FOUR) {
        const vec2 sum = meet(t4, team, v, part);
        const uint token = t0 + t4 + v / ROWS;
        if (part == 0u && n < pc.n && token < pc.tokens) {
            vec2 y = sum * (HALVES ? CM_UNSCALE : WEIGHT_UNSCALE * X_UNSCALE);
            if (ROW_SCALES) y *= vec2(row_scale.v[row], row_scale.v[row + 1u]);
            y_store2(split * pc.tokens + token, row, y.x, y.y);
        }
    }
}
