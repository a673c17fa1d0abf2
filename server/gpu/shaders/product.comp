// A linear layer over weights as they are stored:
//   y[i][r] = sum_c w[e][r][c] * x[i][c]
// for rows i of experts e (w2), or of all tokens (w2 of the shared expert, the gate, the head).
// Bindings: 0 plan (lib/rows.glsl), 1 w [experts, n, k], 2 its scales, 3 x [rows, k] bf16 by
//   place(), 4 y [rows, n] f32.
// Workgroup: 4*ROWS rows of w (x), and items y, y + stride and on.
// Shared memory: 532*ROWS*TOKENS B, of IQ2_XXS 2 KiB more.  Features: shaderIntegerDotProduct.
// Constants: those of lib/sums.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#define MATRICES 1
#include "lib/sums.glsl"
#include "lib/rows.glsl"

layout(std430, set = 0, binding = 4) writeonly buffer Y { float v[]; } y;

void main() {
    const uint lane = gl_LocalInvocationIndex % TEAM, row0 = (gl_WorkGroupID.x * TEAMS + gl_LocalInvocationIndex / TEAM) * ROWS;
    const uint end = items();
    make_grid();
    [[dont_unroll]] for (uint i = gl_WorkGroupID.y; i < end; i += pc.stride) {
        uint expert, first, count, row[TOKENS];
        item(i, expert, first, count);
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) row[t] = row_of(first, count, t);
        make_sums(expert, row0, row, count);
        for (uint o = lane; o < ROWS * TOKENS; o += TEAM) {
            const uint r = o % ROWS, t = o / ROWS;
            if (row0 + r < pc.n && t < count) y.v[row[t] * pc.n + row0 + r] = sum(r, t);
        }
        barrier(); // before the sums of the next item
    }
}
