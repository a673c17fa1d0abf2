// What the layers of a draft block keep of a token:
//   x = RNE16(u * rsqrt(mean(u^2) + eps) * w),  u = RNE16(y)
// Bindings: 0 step ([0] tokens), 1 y [T, d] f32, 2 w [d] f32, 3 x [T, d] bf16.
// Workgroup: a token.
// Shared memory: 1024 B.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/activations.glsl"

layout(local_size_x = 256) in;

layout(push_constant) uniform Push {
    uint d;
    float eps;
} pc;

layout(std430, set = 0, binding = 0) readonly buffer Step { uint v[]; } step_;
layout(std430, set = 0, binding = 1) readonly buffer Y { vec2 v[]; } y;
layout(std430, set = 0, binding = 2) readonly buffer Norm { vec2 v[]; } norm;
layout(std430, set = 0, binding = 3) writeonly buffer X { uint v[]; } x;

shared float square_s[256];

void main() {
    const uint tid = gl_LocalInvocationIndex, t = gl_WorkGroupID.x, pairs = pc.d / 2u;
    if (t >= step_.v[0]) return;
    precise float squares = 0.0;
    for (uint i = tid; i < pairs; i += 256u) {
        const vec2 v = y.v[t * pairs + i], u = vec2(bf16_round(v.x), bf16_round(v.y));
        squares = fma(u.y, u.y, fma(u.x, u.x, squares));
    }
    square_s[tid] = squares;
    barrier();
    [[unroll]] for (uint n = 128u; n > 0u; n /= 2u) {
        if (tid < n) square_s[tid] += square_s[tid + n];
        barrier();
    }
    const float r = inversesqrt(square_s[0] / float(pc.d) + pc.eps);
    for (uint i = tid; i < pairs; i += 256u) {
        const vec2 v = y.v[t * pairs + i], u = vec2(bf16_round(v.x), bf16_round(v.y)) * r * norm.v[i];
        x.v[t * pairs + i] = bf16_pack2(u.x, u.y);
    }
}
