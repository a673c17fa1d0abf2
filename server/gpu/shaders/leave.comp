// Mixes what a sub-layer gave into the streams, and begins the next hyper-connection:
//   Y[j] = RNE16(post[j]*f + sum_i comb[i][j]*Y[i]);  m[r] = fn[r] . Y;  m[ROWS] = Y . Y
// f is the attention's output, RNE16 of the sum of a token's experts, or, in front of all layers,
// Y[j] is the token's row of the embedding.
// Bindings: 0 step ([0] tokens, [4+t] ids), 1 attention's output [T, d] bf16 or the embedding
//   [V, d], 2 routed [T*PER, d] f32, 3 shared [T, d] f32, 4 mix [T, N + N*N] f32: post, comb,
//   5 Y [T, N, d] bf16, 6 fn [ROWS, N*d] f32, 7 parts of m [T, slices, ROWS+1] f32.
// Workgroup: 64 columns (x) of all streams of TOKENS tokens (y).
// Shared memory: 256*N*TOKENS + 132*(ROWS+1)*TOKENS B.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/activations.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint N = 4u;
layout(constant_id = 1) const uint ROWS = 24u;
layout(constant_id = 2) const uint TOKENS = 1u; // at most 4
layout(constant_id = 3) const uint PER = 6u;    // routed experts of a token

layout(push_constant) uniform Push {
    uint d;
    uint from; // 0 the embedding of bf16, 1 of f32, 2 attention, 3 experts
} pc;

layout(std430, set = 0, binding = 0) readonly buffer Step { uint v[]; } step_;
layout(std430, set = 0, binding = 1) readonly buffer From { uint v[]; } from;
layout(std430, set = 0, binding = 2) readonly buffer Routed { vec2 v[]; } routed;
layout(std430, set = 0, binding = 3) readonly buffer Shared { vec2 v[]; } always;
layout(std430, set = 0, binding = 4) readonly buffer Mix { float v[]; } mix_;
layout(std430, set = 0, binding = 5) buffer Streams { uint v[]; } streams;
layout(std430, set = 0, binding = 6) readonly buffer Fn { vec4 v[]; } fn;
layout(std430, set = 0, binding = 7) writeonly buffer Parts { float v[]; } parts;

const uint SLICE = 64u, FOURS = N * SLICE / 4u; // of a token's columns here, streams one after the other
const uint OWN = (ROWS + 4u) / 4u, TURNS = (FOURS + 31u) / 32u; // rows of a team, fours of an invocation

shared vec4 y_s[TOKENS * FOURS];
shared float sum_s[(ROWS + 1u) * TOKENS * 33u];

// output_of: columns c and c+1 of what the sub-layer gave.
vec2 output_of(uint t, uint c) {
    if (pc.from == 2u) return bf16_unpack2(from.v[(t * pc.d + c) / 2u]);
    vec2 y[PER];
    [[unroll]] for (uint i = 0u; i < PER; i++) y[i] = routed.v[((t * PER + i) * pc.d + c) / 2u];
    precise vec2 f = vec2(0.0);
    [[unroll]] for (uint i = 0u; i < PER; i++) f = f + y[i];
    f = f + always.v[(t * pc.d + c) / 2u];
    return vec2(bf16_round(f.x), bf16_round(f.y));
}

// mixed: columns c and c+1 of a token, kept in memory and here.
void mixed(uint local, uint t, uint c) {
    uint word[N];
    if (pc.from < 2u) {
        const uint at = step_.v[4u + t] * pc.d + c;
        const uint w = pc.from == 0u ? from.v[at / 2u] : bf16_pack2(uintBitsToFloat(from.v[at]), uintBitsToFloat(from.v[at + 1u]));
        [[unroll]] for (uint j = 0u; j < N; j++) word[j] = w;
    } else {
        const vec2 f = output_of(t, c);
        const uint mix0 = t * (N + N * N);
        vec2 old[N];
        [[unroll]] for (uint i = 0u; i < N; i++) old[i] = bf16_unpack2(streams.v[((t * N + i) * pc.d + c) / 2u]);
        [[unroll]] for (uint j = 0u; j < N; j++) {
            precise vec2 y = mix_.v[mix0 + j] * f;
            [[unroll]] for (uint i = 0u; i < N; i++) y = y + mix_.v[mix0 + N + i * N + j] * old[i];
            word[j] = bf16_pack2(y.x, y.y);
        }
    }
    [[unroll]] for (uint j = 0u; j < N; j++) {
        streams.v[((t * N + j) * pc.d + c) / 2u] = word[j];
        const vec2 y = bf16_unpack2(word[j]);
        const uint at = local * FOURS * 4u + j * SLICE + c % SLICE;
        y_s[at / 4u][at % 4u] = y.x;
        y_s[at / 4u][at % 4u + 1u] = y.y;
    }
}

void main() {
    const uint tid = gl_LocalInvocationIndex, first = gl_WorkGroupID.x * SLICE, t0 = gl_WorkGroupID.y * TOKENS;
    if (t0 >= step_.v[0]) return;
    const uint count = min(TOKENS, step_.v[0] - t0), lane = tid % 32u, team = tid / 32u;
    // fn comes from memory while the streams are mixed. A team has every fourth row; the last is Y.
    vec4 w[OWN][TURNS];
    [[unroll]] for (uint k = 0u; k < OWN; k++) {
        [[unroll]] for (uint i = 0u; i < TURNS; i++) {
            const uint r = team + 4u * k, at = lane + 32u * i, c = first + at % (SLICE / 4u) * 4u;
            w[k][i] = vec4(0.0);
            if (r < ROWS && at < FOURS && c < pc.d) w[k][i] = fn.v[((r * N + at / (SLICE / 4u)) * pc.d + c) / 4u];
        }
    }
    for (uint i = tid; i < SLICE / 2u * TOKENS; i += 128u) {
        const uint t = i / (SLICE / 2u), c = first + i % (SLICE / 2u) * 2u;
        if (t < count && c < pc.d) mixed(t, t0 + t, c);
    }
    barrier();
    [[unroll]] for (uint k = 0u; k < OWN; k++) {
        const uint r = team + 4u * k;
        if (r > ROWS) continue;
        precise float sum[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) sum[t] = 0.0;
        [[unroll]] for (uint i = 0u; i < TURNS; i++) {
            const uint at = lane + 32u * i;
            if (at >= FOURS || first + at % (SLICE / 4u) * 4u >= pc.d) continue;
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                if (t > 0u && t >= count) continue;
                const vec4 y = y_s[t * FOURS + at], a = r < ROWS ? w[k][i] : y;
                sum[t] = fma(a.w, y.w, fma(a.z, y.z, fma(a.y, y.y, fma(a.x, y.x, sum[t]))));
            }
        }
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) sum_s[(r * TOKENS + t) * 33u + lane] = sum[t];
    }
    barrier();
    const uint slices = (pc.d + SLICE - 1u) / SLICE;
    for (uint o = tid; o < (ROWS + 1u) * TOKENS; o += 128u) {
        const uint t = o % TOKENS;
        precise float all = 0.0;
        [[unroll]] for (uint i = 0u; i < 32u; i++) all = all + sum_s[o * 33u + i];
        if (t < count) parts.v[((t0 + t) * slices + gl_WorkGroupID.x) * (ROWS + 1u) + o / TOKENS] = all;
    }
}
