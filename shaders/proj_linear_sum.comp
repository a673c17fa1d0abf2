// The sum of a linear layer's parts over k, in this order:
//   y[t][c] = sum_s part[s][t][c], s = 0, 1, ..
// Shared memory: 0 B.
// Features: none.
// Bindings: 0 part [splits,T,columns] f32, 1 y [T,y_stride] bf16 or f32, of which columns y_column
//   .. y_column+columns-1 are written.
// Workgroup: 128 fours of neighbouring columns (x) of a token (y). Eight, four or two parts are on
//   their way at a time.
// Constants: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/bf16.glsl"

layout(local_size_x = 128) in;

layout(std430, set = 0, binding = 0) readonly buffer Part { vec4 v[]; } part;
layout(std430, set = 0, binding = 1) writeonly buffer Y { uvec2 v[]; } y;

layout(push_constant) uniform Push {
    uint tokens;
    uint columns;
    uint splits;
    uint y_stride;
    uint y_column;
    uint y_f32; // 1: y is f32, 0: bf16
} pc;

void main() {
    const uint quads = pc.columns / 4u, token = gl_WorkGroupID.y;
    const uint i = gl_WorkGroupID.x * 128u + gl_LocalInvocationIndex;
    if (i >= quads) return;
    vec4 sum = vec4(0.0);
    uint s = 0u;
    for (; s + 8u <= pc.splits; s += 8u) {
        vec4 v[8];
        [[unroll]] for (uint j = 0u; j < 8u; j++) v[j] = part.v[((s + j) * pc.tokens + token) * quads + i];
        [[unroll]] for (uint j = 0u; j < 8u; j++) sum += v[j];
    }
    for (; s + 4u <= pc.splits; s += 4u) {
        vec4 v[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) v[j] = part.v[((s + j) * pc.tokens + token) * quads + i];
        [[unroll]] for (uint j = 0u; j < 4u; j++) sum += v[j];
    }
    for (; s + 2u <= pc.splits; s += 2u) {
        const vec4 a = part.v[(s * pc.tokens + token) * quads + i], b = part.v[((s + 1u) * pc.tokens + token) * quads + i];
        sum += a;
        sum += b;
    }
    if (s < pc.splits) sum += part.v[(s * pc.tokens + token) * quads + i];
    const uint at = token * pc.y_stride + pc.y_column + i * 4u;
    if (pc.y_f32 != 0u) {
        y.v[at >> 1] = floatBitsToUint(sum.xy);
        y.v[(at >> 1) + 1u] = floatBitsToUint(sum.zw);
    } else {
        y.v[at >> 2] = uvec2(bf16_pack2(sum.x, sum.y), bf16_pack2(sum.z, sum.w));
    }
}
