// A linear layer over weights as they are stored, decoded on the way: y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k], f32 sums.
// bindings: 0 w_scale, 1 row_scale, 2 x_scale, 3 x [T,G,K], 4 w [G*N,K], 5 y [T,G,N]: shapes and formats in lib/linear.glsl; KV_DA builds
//   reach x, w and y by address.
// One workgroup: 64 tokens (x) and 64 rows (y) of group z. Each step decodes 16 numbers of their rows to shared memory, k first; an
//   invocation holds 8 tokens x 4 rows of sums.
// Shared memory: 8704 B.
// Features: none; with KV_DA bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/linear_f32.glsl"

layout(local_size_x = 128) in;

const uint TILE = 64u, STEP = 16u;
const uint PITCH = TILE / 4u + 1u;

shared vec4 x_s[STEP * PITCH]; // [STEP, 64 tokens]
shared vec4 w_s[STEP * PITCH]; // [STEP, 64 rows]

void keep_x(uint unit, uint row, vec4 a, vec4 b) {
    [[unroll]] for (uint e = 0u; e < 4u; e++) {
        x_s[(unit * 8u + e) * PITCH + row / 4u][row % 4u] = a[e];
        x_s[(unit * 8u + 4u + e) * PITCH + row / 4u][row % 4u] = b[e];
    }
}

void keep_w(uint unit, uint row, vec4 a, vec4 b) {
    [[unroll]] for (uint e = 0u; e < 4u; e++) {
        w_s[(unit * 8u + e) * PITCH + row / 4u][row % 4u] = a[e];
        w_s[(unit * 8u + 4u + e) * PITCH + row / 4u][row % 4u] = b[e];
    }
}

// load_x, load_w: eight numbers at k, scales included but row_scale.
void load_x(uint token, uint group, uint k, out vec4 a, out vec4 b) {
    const uint i = x_row(token, group) * (pc.k / 8u) + k / 8u;
    act8(x_quad(ACT == ACT_BF16 ? i : i >> 1), i & 1u, a, b);
    if (ACT != ACT_BF16) {
        const float scale = uintBitsToFloat(x_block_bits(token, group, k)) * ACT_UNSCALE;
        a *= scale;
        b *= scale;
    }
}

void load_w(uint row, uint k, out vec4 a, out vec4 b) {
    const uint i = row * (pc.k / 8u) + k / 8u;
    if (FORMAT == WEIGHT_BF16) {
        weight8(w_quad(i), 0u, a, b);
    } else if (FORMAT == WEIGHT_NVFP4) {
        weight8(w_quad(i >> 2), i & 3u, a, b);
        const float scale = e4m3_decode(w_nv_scale(row, k));
        a *= scale;
        b *= scale;
    } else {
        weight8(w_quad(i >> 1), i & 1u, a, b);
        const float scale = uintBitsToFloat(w_block_bits(row, k));
        a *= scale;
        b *= scale;
    }
}

void main() {
    const uint tid = gl_LocalInvocationIndex, group = gl_WorkGroupID.z;
    const uint t0 = gl_WorkGroupID.x * TILE, n0 = gl_WorkGroupID.y * TILE;
    const uint line = tid / 2u, unit = tid % 2u;        // what this invocation decodes
    const uint mine_t = tid / 16u * 8u, mine_n = tid % 16u; // first token, four rows that it sums
    const uint token = min(t0 + line, pc.tokens - 1u), row = group * pc.n + min(n0 + line, pc.n - 1u);
    vec4 acc[8];
    [[unroll]] for (uint i = 0u; i < 8u; i++) acc[i] = vec4(0.0);
    [[dont_unroll]] for (uint k0 = 0u; k0 < pc.k; k0 += STEP) {
        const uint k = k0 + unit * 8u;
        vec4 xa = vec4(0.0), xb = vec4(0.0), wa = vec4(0.0), wb = vec4(0.0);
        if (k < pc.k) {
            load_x(token, group, k, xa, xb);
            load_w(row, k, wa, wb);
        }
        barrier();
        keep_x(unit, line, xa, xb);
        keep_w(unit, line, wa, wb);
        barrier();
        [[dont_unroll]] for (uint s = 0u; s < STEP; s++) {
            const vec4 w = w_s[s * PITCH + mine_n], a = x_s[s * PITCH + mine_t / 4u], b = x_s[s * PITCH + mine_t / 4u + 1u];
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                acc[i] += a[i] * w;
                acc[i + 4u] += b[i] * w;
            }
        }
    }
    const uint n = n0 + mine_n * 4u;
    if (n >= pc.n) return;
    vec4 scale = vec4(WEIGHT_UNSCALE);
    if (FORMAT == WEIGHT_NVFP4) {
        [[unroll]] for (uint e = 0u; e < 4u; e++) scale[e] *= row_scale.v[group * pc.n + n + e];
    }
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        const uint t = t0 + mine_t + i;
        if (t < pc.tokens) y_store4(t, group * pc.n + n, acc[i] * scale);
    }
}
