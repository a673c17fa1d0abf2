// The first half of an expert:
//   a = x.w1^T;  b = x.w3^T;  h[i][r] = RNE16(silu(min(a, limit)) * clamp(b, -limit, limit) * v[i])
// for rows i of experts, whose token is i / per, or of all tokens (shared expert, v = 1).
// Bindings: 0 plan (lib/rows.glsl), 1 w1 [experts, n, k], 2 its scales, 3 w3, 4 its scales,
//   5 x [T, k] bf16 by place(), 6 v [rows] f32, 7 h [rows, n] bf16 by place().
// Workgroup: 4*ROWS rows of w1 and w3 (x), and items y, y + stride and on.
// Shared memory: 1064*ROWS*TOKENS B, of IQ2_XXS 2 KiB more.  Features: shaderIntegerDotProduct.
// Constants: those of lib/sums.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#define MATRICES 2
#include "lib/sums.glsl"
#include "lib/rows.glsl"
#include "lib/gate.glsl"

layout(std430, set = 0, binding = 6) readonly buffer V { float v[]; } v;
layout(std430, set = 0, binding = 7) writeonly buffer H { uint v[]; } h;

void main() {
    const uint lane = gl_LocalInvocationIndex % TEAM, row0 = (gl_WorkGroupID.x * TEAMS + gl_LocalInvocationIndex / TEAM) * ROWS;
    const uint end = items();
    make_grid();
    [[dont_unroll]] for (uint i = gl_WorkGroupID.y; i < end; i += pc.stride) {
        uint expert, first, count, row[TOKENS], token[TOKENS];
        item(i, expert, first, count);
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            row[t] = row_of(first, count, t);
            token[t] = row[t] / pc.per;
        }
        make_sums(expert, row0, token, count);
        for (uint o = lane; o < ROWS / 2u * TOKENS; o += TEAM) {
            const uint r = o % (ROWS / 2u) * 2u, t = o / (ROWS / 2u), n = row0 + r;
            if (n >= pc.n || t >= count) continue;
            const float weight = pc.routed > 0u ? v.v[row[t]] : 1.0;
            h.v[(row[t] * pc.h_quads + place(n / 8u)) * 4u + n % 8u / 2u] = bf16_pack2(gated(sum(r, t), sum(ROWS + r, t), weight),
                gated(sum(r + 1u, t), sum(ROWS + r + 1u, t), weight));
        }
        barrier(); // before the sums of the next item
    }
}
