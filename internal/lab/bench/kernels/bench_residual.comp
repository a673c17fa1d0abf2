#version 460
// The least that a model has between two layers, residual and norm:
//   x[t][i] += y[t][i],  out[t][i] = bf16(x[t][i] * (mean_i x[t][i]^2 + 1e-6)^-0.5)
// Bindings:
//   0 y [T, width] bf16    1 x [T, width] f32    2 out [T, width] bf16; y and out may be the same
// With first = 1, x[t][i] = y[t][i] instead. One workgroup owns a token, and each
// invocation the same numbers of y, x and out; width is a multiple of 4. Shared memory:
// 1024 bytes. No features beyond Vulkan 1.2.
// It stands for a server's own kernel, in the benchmark of whole steps, tests and examples.
#extension GL_GOOGLE_include_directive : require
#include "lib/bf16.glsl"

layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) readonly buffer Y { uvec2 y[]; };
layout(set = 0, binding = 1, std430) buffer X { vec4 x[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Out { uvec2 o[]; };
layout(push_constant) uniform Push { uint width; uint first; } pc;

shared float sums[256];

void main() {
    const uint n = pc.width / 4u, row = gl_WorkGroupID.x * n, me = gl_LocalInvocationID.x;
    float sum = 0.0;
    for (uint i = me; i < n; i += 256u) {
        const uvec2 w = y[row + i];
        vec4 v = vec4(bf16_unpack2(w.x), bf16_unpack2(w.y));
        if (pc.first == 0u) v += x[row + i];
        x[row + i] = v;
        sum += dot(v, v);
    }
    sums[me] = sum;
    barrier();
    for (uint step_ = 128u; step_ > 0u; step_ /= 2u) {
        if (me < step_) sums[me] += sums[me + step_];
        barrier();
    }
    const float scale = inversesqrt(sums[0] / float(pc.width) + 1e-6);
    for (uint i = me; i < n; i += 256u) {
        const vec4 v = x[row + i] * scale;
        o[row + i] = uvec2(bf16_pack2(v.x, v.y), bf16_pack2(v.z, v.w));
    }
}
