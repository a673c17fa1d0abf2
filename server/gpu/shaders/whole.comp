// Rows of activations as whole numbers, as lib/whole.glsl has them, of bf16:
//   p = the smallest power of two that is not below any of 256 columns;  q = RNE(x / p * 2^13)
// If one of them is not finite, p is NaN. A device may take subnormals for zeros. After the last
// column there are zeros.
// Bindings: 0 x [rows, k] bf16 by place(), 1 q.
// Workgroup: 1024 columns (y) of a row (x).  Shared memory: 528 B.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/activations.glsl"

layout(local_size_x = 128) in;
layout(push_constant) uniform Push {
    uint k;
    uint x_quads, q_quads; // of a row
} pc;
layout(std430, set = 0, binding = 0) readonly buffer X { uvec4 v[]; } x;
layout(std430, set = 0, binding = 1) writeonly buffer Q { uint v[]; } q;

#include "lib/whole.glsl"

const float ROUND = 12582912.0; // the numbers of f32 beside it are whole

shared uint most_s[4];
shared int sums_s[128];

void main() {
    const uint tid = gl_LocalInvocationIndex, quad = gl_WorkGroupID.y * 128u + tid;
    float v[8];
    bf16_unpack8(quad < pc.k / 8u ? x.v[gl_WorkGroupID.x * pc.x_quads + place(quad)] : uvec4(0u), v);
    uint most = 0u;
    [[unroll]] for (uint i = 0u; i < 8u; i++) most = max(most, floatBitsToUint(v[i]) & 0x7FFFFFFFu);
    if (tid < 4u) most_s[tid] = 0u;
    barrier();
    atomicMax(most_s[tid / 32u], most); // in any order
    barrier();
    most = most_s[tid / 32u];
    const bool finite = most < 0x7F800000u;
    const uint power = max((most + 0x7FFFFFu) >> 23, 14u);
    const float by = uintBitsToFloat((267u - power) << 23);
    int sum = 0;
    uvec2 high = uvec2(0u), low = uvec2(0u);
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        precise const float rounded = v[i] * by + ROUND;
        const int n = finite ? floatBitsToInt(rounded) - floatBitsToInt(ROUND) : 0, upper = n >> 7;
        sum += n;
        high[i / 4u] |= uint(upper & 255) << (i % 4u * 8u);
        low[i / 4u] |= uint(n & 127) << (i % 4u * 8u);
    }
    sums_s[tid] = sum;
    barrier();
    // Four invocations have a piece: two its first half, two the second one.
    const uint row = gl_WorkGroupID.x * pc.q_quads, half_ = quad / 2u % 2u, piece = quad / 4u, n = units();
    const uint at = (row + place(4u * piece + half_)) * 4u, below = (row + place(4u * piece + half_ + 2u)) * 4u;
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        q.v[at + quad % 2u * 2u + i] = high[i];
        q.v[below + quad % 2u * 2u + i] = low[i];
    }
    if (tid % 2u == 0u) q.v[(row + n * 128u) * 4u + quad / 2u] = uint(sum + sums_s[tid + 1u]);
    if (tid % 32u == 0u) q.v[(row + n * 144u) * 4u + quad / 32u] = finite ? (power - 13u) << 23 : 0x7FC00000u;
}
