// up.comp for many tokens, with the same bits:
//   a = x.w1^T;  b = x.w3^T;  h[i][r] = RNE16(silu(min(a, limit)) * clamp(b, -limit, limit) * v[i])
// Bindings: those of up.comp.
// Workgroup: 32 rows of w1 and w3 (x), and items y, y + stride and on, of up to TOKENS rows.
// Shared memory: up to 12 KiB + 172*TOKENS B.  Features: shaderIntegerDotProduct.
// Constants: those of lib/tiles.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#define MATRICES 2
#include "lib/tiles.glsl"
#include "lib/rows.glsl"
#include "lib/gate.glsl"

layout(std430, set = 0, binding = 6) readonly buffer V { float v[]; } v;
layout(std430, set = 0, binding = 7) writeonly buffer H { uint v[]; } h;

void main() {
    const uint tid = gl_LocalInvocationIndex, row0 = gl_WorkGroupID.x * ROWS, end = items();
    make_grid();
    [[dont_unroll]] for (uint i = gl_WorkGroupID.y; i < end; i += pc.stride) {
        uint expert, first, count;
        float sums[4][COUNT];
        item(i, expert, first, count);
        barrier(); // after the rows of the last item
        if (tid < TOKENS) row_s[tid] = row_of(first, count, tid) / pc.per;
        make_tile(expert, row0, sums);
        [[unroll]] for (uint t = 0u; t < COUNT; t++) {
            const uint token = t * 8u + tid % 8u, n = row0 + tid / 8u * 2u;
            if (token >= count || n >= pc.n) continue;
            const uint row = row_of(first, count, token);
            const float weight = pc.routed > 0u ? v.v[row] : 1.0;
            h.v[(row * pc.h_quads + place(n / 8u)) * 4u + n % 8u / 2u] =
                bf16_pack2(gated(sums[0][t], sums[2][t], weight), gated(sums[1][t], sums[3][t], weight));
        }
    }
}
