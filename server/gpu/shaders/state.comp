// What a layer left of a token, for its drafts, among what other layers left:
//   s[t][at + c] = RNE16(sum_j Y[t][j][c] / N)
// Bindings: 0 step ([0] tokens), 1 Y [T, N, d] bf16, 2 s [T, s_quads] quads of bf16 by place().
// Workgroup: a token.
// Shared memory: none.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/activations.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint N = 4u;

layout(push_constant) uniform Push {
    uint quads;   // of a stream
    uint at;      // the first of s
    uint s_quads; // of a row of s
} pc;

layout(std430, set = 0, binding = 0) readonly buffer Step { uint v[]; } step_;
layout(std430, set = 0, binding = 1) readonly buffer Streams { uvec4 v[]; } streams;
layout(std430, set = 0, binding = 2) writeonly buffer States { uvec4 v[]; } states;

void main() {
    const uint t = gl_WorkGroupID.x;
    if (t >= step_.v[0]) return;
    for (uint q = gl_LocalInvocationIndex; q < pc.quads; q += 256u) {
        precise float sum[8];
        [[unroll]] for (uint e = 0u; e < 8u; e++) sum[e] = 0.0;
        [[unroll]] for (uint j = 0u; j < N; j++) {
            float y[8];
            bf16_unpack8(streams.v[(t * N + j) * pc.quads + q], y);
            [[unroll]] for (uint e = 0u; e < 8u; e++) sum[e] = sum[e] + y[e];
        }
        uvec4 word;
        [[unroll]] for (uint i = 0u; i < 4u; i++) word[i] = bf16_pack2(sum[2u * i] / float(N), sum[2u * i + 1u] / float(N));
        states.v[t * pc.s_quads + place(pc.at + q)] = word;
    }
}
