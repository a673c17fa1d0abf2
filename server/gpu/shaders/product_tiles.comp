// product.comp for many tokens, with the same bits:
//   y[i][r] = sum_c w[e][r][c] * x[i][c]
// Bindings: those of product.comp.
// Workgroup: 64 rows of w (x), and items y, y + stride and on, of up to TOKENS rows of x.
// Shared memory: up to 12 KiB + 172*TOKENS B.  Features: shaderIntegerDotProduct.
// Constants: those of lib/tiles.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#define MATRICES 1
#include "lib/tiles.glsl"
#include "lib/rows.glsl"

layout(std430, set = 0, binding = 4) writeonly buffer Y { float v[]; } y;

void main() {
    const uint tid = gl_LocalInvocationIndex, row0 = gl_WorkGroupID.x * ROWS, end = items();
    make_grid();
    [[dont_unroll]] for (uint i = gl_WorkGroupID.y; i < end; i += pc.stride) {
        uint expert, first, count;
        float sums[4][COUNT];
        item(i, expert, first, count);
        barrier(); // after the rows of the last item
        if (tid < TOKENS) row_s[tid] = row_of(first, count, tid);
        make_tile(expert, row0, sums);
        [[unroll]] for (uint t = 0u; t < COUNT; t++) {
            const uint token = t * 8u + tid % 8u, n = row0 + tid / 8u * 4u;
            if (token >= count) continue;
            [[unroll]] for (uint r = 0u; r < 4u; r++) {
                if (n + r < pc.n) y.v[row_s[token] * pc.n + n + r] = sums[r][t];
            }
        }
    }
}
