// The sum of a linear layer's parts over k: y[t][c] = sum_s part[s][t][c], s = 0, 1, .. in this order.
// bindings: 0 part [splits,T,columns] f32, 1 y [T,y_stride] bf16 or f32, of which columns y_column .. y_column+columns-1 are written
// One invocation: two neighbouring columns of a token. x: columns, y: tokens. Eight, four or two parts are on their way at a time.
// Shared memory: none.
// Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/bf16.glsl"

layout(local_size_x = 128) in;

layout(std430, set = 0, binding = 0) readonly buffer Part { vec2 v[]; } part;
layout(std430, set = 0, binding = 1) writeonly buffer Y { uint v[]; } y;

layout(push_constant) uniform Push {
    uint tokens;
    uint columns;
    uint splits;
    uint y_stride;
    uint y_column;
    uint y_f32; // 1: y is f32, 0: bf16
} pc;

void main() {
    const uint pairs = pc.columns / 2u, token = gl_WorkGroupID.y;
    const uint i = gl_WorkGroupID.x * 128u + gl_LocalInvocationIndex;
    if (i >= pairs) return;
    vec2 sum = vec2(0.0);
    uint s = 0u;
    for (; s + 8u <= pc.splits; s += 8u) {
        vec2 v[8];
        [[unroll]] for (uint j = 0u; j < 8u; j++) v[j] = part.v[((s + j) * pc.tokens + token) * pairs + i];
        [[unroll]] for (uint j = 0u; j < 8u; j++) sum += v[j];
    }
    for (; s + 4u <= pc.splits; s += 4u) {
        vec2 v[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) v[j] = part.v[((s + j) * pc.tokens + token) * pairs + i];
        [[unroll]] for (uint j = 0u; j < 4u; j++) sum += v[j];
    }
    for (; s < pc.splits; s++) sum += part.v[(s * pc.tokens + token) * pairs + i];
    const uint at = token * pc.y_stride + pc.y_column + i * 2u;
    if (pc.y_f32 != 0u) {
        y.v[at] = floatBitsToUint(sum.x);
        y.v[at + 1u] = floatBitsToUint(sum.y);
    } else {
        y.v[at >> 1] = bf16_pack2(sum.x, sum.y);
    }
}
