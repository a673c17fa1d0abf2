// product.comp for many tokens, with matrices:
//   y[i][r] = sum_c w[e][r][c] * x[i][c]
// Bindings: those of product.comp, but x is f16. n is a multiple of 4.
// Workgroup: 128 rows of w (x), and items y, y + stride and on, of up to TOKENS rows of x.
// Shared memory: 18432 + 148*TOKENS B, of IQ2_XXS 2 KiB more.
// Features: cooperativeMatrix (f16), shaderFloat16, vulkanMemoryModel, subgroupSizeControl.
// Constants: those of lib/matrices.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"

#define MATRICES 1
#define X_ROW(row) (row)
#include "lib/matrices.glsl"
#include "lib/rows.glsl"

layout(std430, set = 0, binding = 4) writeonly buffer Y { vec4 v[]; } y;

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
            const uint mine = store_tile(n);
            for (uint at = gl_SubgroupInvocationID; at < CM_N * (WM / 4u); at += SUBGROUP) {
                const uint t = at / (WM / 4u), q = at % (WM / 4u);
                const uint token = tokens_at() + n * CM_N + t, row = row0 + rows_at() + q * 4u;
                if (token >= count || row >= pc.n) continue;
                y.v[(row_s[token] * pc.n + row) / 4u] = uintBitsToFloat(tile_s[mine + t * OUT_PITCH + q]) / LIFT;
            }
        }
    }
}
