// up.comp for many tokens, with matrices:
//   a = x.w1^T;  b = x.w3^T;  h[i][r] = silu(min(a, limit)) * clamp(b, -limit, limit) * v[i]
// Bindings: those of up.comp, but h is f16, for product_cm.comp: beyond +-65504 it is that. n is a
//   multiple of 8.
// Workgroup: 64 rows of w1 and w3 (x), and items y, y + stride and on, of up to TOKENS rows.
// Shared memory: 18432 + 148*TOKENS B, of IQ2_XXS 2 KiB more.
// Features: cooperativeMatrix (f16), shaderFloat16, vulkanMemoryModel, subgroupSizeControl.
// Constants: those of lib/matrices.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"

#define MATRICES 2
#define X_ROW(row) ((row) / pc.per)
#include "lib/matrices.glsl"
#include "lib/rows.glsl"
#include "lib/gate.glsl"

layout(std430, set = 0, binding = 6) readonly buffer V { float v[]; } v;
layout(std430, set = 0, binding = 7) writeonly buffer H { uvec4 v[]; } h;

// held: as far as f16 goes. A NaN stays one.
vec4 held(vec4 a) { return mix(a, sign(a) * 65504.0, greaterThan(abs(a), vec4(65504.0))); }

uvec2 halves4(vec4 a) { return uvec2(packHalf2x16(a.xy), packHalf2x16(a.zw)); }

void main() {
    const uint tid = gl_LocalInvocationIndex, row0 = gl_WorkGroupID.x * ROWS, end = items();
    make_grid();
    [[dont_unroll]] for (uint item_ = gl_WorkGroupID.y; item_ < end; item_ += pc.stride) {
        uint expert, first, count;
        item(item_, expert, first, count);
        barrier(); // after the rows of the last item
        if (tid < TOKENS) row_s[tid] = row_of(first, count, tid);
        make_sums(expert, row0, count);
        [[unroll]] for (uint n = 0u; n < N_TILES; n++) {
            [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
                [[unroll]] for (uint c = 0u; c < acc[0][i][n].length(); c++)
                    acc[0][i][n][c] = gated(acc[0][i][n][c] / LIFT, acc[1][i][n][c] / LIFT, 1.0);
            }
            const uint mine = store_tile(n);
            for (uint at = gl_SubgroupInvocationID; at < CM_N * (WM / 8u); at += SUBGROUP) {
                const uint t = at / (WM / 8u), q = at % (WM / 8u);
                const uint token = tokens_at() + n * CM_N + t, row = row0 + rows_at() + q * 8u;
                if (token >= count || row >= pc.n) continue;
                const float weight = pc.routed > 0u ? v.v[row_s[token]] : 1.0;
                const vec4 low = uintBitsToFloat(tile_s[mine + t * OUT_PITCH + q * 2u]) * weight;
                const vec4 high = uintBitsToFloat(tile_s[mine + t * OUT_PITCH + q * 2u + 1u]) * weight;
                h.v[row_s[token] * pc.h_quads + place(row / 8u)] = uvec4(halves4(held(low)), halves4(held(high)));
            }
        }
    }
}
