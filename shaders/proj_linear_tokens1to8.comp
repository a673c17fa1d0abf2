// A linear layer for 1 to 8 tokens a workgroup, bound by reading the weights:
//   y[t][g][n] = sum_k x[t][g][k] * w[g*N + n][k]; see proj_linear.comp.
// Shared memory: 516*ROWS*TOKENS + 1024 B, at most 9280; with NORMS 532 more.
// Features: none; with ADDRESSED, as NORMS needs it, bufferDeviceAddress, shaderInt64; with
//   HALF_CODES (lib/linear_f32.glsl) shaderFloat16.
// Bindings: 0 to 5 of lib/linear.glsl; x, w and y with ADDRESSED by address.
// Workgroup: 128/LANES * ROWS rows (x) of group z and TOKENS tokens (y). LANES invocations share
//   ROWS rows and read 16 bytes of each at a time: pieces of 16*LANES bytes, once for all tokens.
//   Their sums meet in shared memory in an order that depends on LANES, ROWS and TOKENS alone.
// Constants after the two of lib/formats.glsl: 2 TOKENS, 3 ROWS (2 or 4), 4 LANES: powers of
//   two, TOKENS*ROWS <= 16, LANES <= 128; with NORMS those of lib/linear_norm.glsl: 5 NORM (1
//   weights of bf16, 2 of f32), 6 NORM_QUADS, 7 NORM_EPS, 8 NORM_INVERSE = 1/(8*NORM_QUADS), bits
//   of f32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#include "lib/linear.glsl"
#include "lib/linear_f32.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 2) const uint TOKENS = 1u;
layout(constant_id = 3) const uint ROWS = 2u;
layout(constant_id = 4) const uint LANES = 32u;
#ifdef NORMS
layout(constant_id = 5) const uint NORM = 1u;
layout(constant_id = 6) const uint NORM_QUADS = 1u;
layout(constant_id = 7) const uint NORM_EPS = 0u;
layout(constant_id = 8) const uint NORM_INVERSE = 0u;
#endif

#include "lib/linear_rows.glsl"
#ifdef NORMS
shared vec4 rms_of[32];
shared float rms_part[4];
#include "lib/rms.glsl"
const int NORM_SCOPE = gl_ScopeDevice;
#include "lib/linear_norm.glsl"

// norm_put: two numbers of y. It is a function because glslang takes what is stored by address for
// what the norm reads by address, and makes all sums before it `precise`: 10 % more code.
void norm_put(uint token, uint row, uint pair) { NormPut1(norm_address(token, row)).v = pair; }

const uint NORM_STEPS = (NORM_QUADS + 127u) / 128u;

// norm_rows: the workgroup's tokens. The sum is that of proj_qkv_norm.comp, in its order.
void norm_rows(uint t0, bool rehearsed) {
    const uint tid = gl_LocalInvocationIndex;
    [[dont_unroll]] for (uint t = t0; t < min(t0 + TOKENS, pc.tokens); t++) {
        uvec4 x[NORM_STEPS], g[NORM_STEPS], h[NORM_STEPS];
        [[unroll]] for (uint i = 0u; i < NORM_STEPS; i++) {
            const uint u = min(i * 128u + tid, NORM_QUADS - 1u);
            x[i] = NormSeen(norm_number(t, u * 8u, rehearsed)).v;
            norm_weights(u, g[i], h[i]);
        }
        precise float sum = 0.0;
        [[unroll]] for (uint i = 0u; i < NORM_STEPS; i++) sum = sum + (i * 128u + tid < NORM_QUADS ? rms_squares(x[i]) : 0.0);
        rms_of[tid / 4u][tid % 4u] = sum;
        barrier();
        if (tid < 4u) rms_part[tid] = rms_sum32(32u * tid);
        barrier();
        precise float all = (rms_part[0] + rms_part[1]) + (rms_part[2] + rms_part[3]);
        const float r = rms_factor(all, uintBitsToFloat(NORM_INVERSE), uintBitsToFloat(NORM_EPS));
        [[unroll]] for (uint i = 0u; i < NORM_STEPS; i++) {
            const uint u = i * 128u + tid;
            if (u >= NORM_QUADS) break;
            vec4 a, b;
            norm_gains(g[i], h[i], a, b);
            const uvec4 y = rms_scaled(x[i], r, a, b);
            if (!rehearsed) NormResult(pc.normed_addr + (t * NORM_QUADS + u) * 16u).v = y;
        }
    }
}

#endif

#include "lib/linear_quads.glsl"

void fetch(uint row0, uint k, out Quads q) {
    const uint w0 = row0 * (pc.k / VEC) + k / VEC;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        q.w[r] = w_quad(w0 + r * (pc.k / VEC));
        q.beside[r] = ROWWISE ? w_beside(row0 + r, k) : uvec2(0u);
    }
    q.scale = STEP_SUMS ? w_block_bits(row0, k) : 0u;
}

// accumulate: the quads at k, scales included.
void accumulate(uint group, uint t0, uint k, Quads q) {
    uvec4 x[TOKENS][X_QUADS];
    float x_factor[TOKENS], block[ROWS][BLOCKS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        const uint token = min(t0 + t, pc.tokens - 1u);
        const uint x0 = x_row(token, group) * (pc.k / X_VEC) + k / X_VEC;
        [[unroll]] for (uint i = 0u; i < X_QUADS; i++) x[t][i] = x_quad(x0 + i);
        x_factor[t] = ACT == ACT_BF16 ? 1.0 : uintBitsToFloat(x_block_bits(token, group, k));
    }
#include "lib/linear_products.glsl"
}

// products: the workgroup's sums to y.
void products(uint group, uint t0, uint first) {
    const uint tid = gl_LocalInvocationIndex, lane = tid % LANES;
    // Behind the last row the last ones are read again: every invocation has to reach the barriers.
    const uint row0 = group * pc.n + min(first + tid / LANES * ROWS, pc.n - ROWS);
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) acc[r][t] = 0.0;
    }
    if (OVERLAPS) { // decoding takes as long as the loads, so the next ones are on their way meanwhile
        Quads q;
        fetch(row0, min(lane * VEC, pc.k - VEC), q);
        [[dont_unroll]] for (uint k = lane * VEC; k < pc.k; k += LANES * VEC) {
            Quads next;
            fetch(row0, min(k + LANES * VEC, pc.k - VEC), next);
            accumulate(group, t0, k, q);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                q.w[r] = next.w[r];
                q.beside[r] = next.beside[r];
            }
        }
    } else {
        [[dont_unroll]] for (uint k = lane * VEC; k < pc.k; k += LANES * VEC) {
            Quads q;
            fetch(row0, k, q);
            accumulate(group, t0, k, q);
        }
    }

    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) sum_s[(t * ROWS + r) * PITCH + tid] = acc[r][t];
    }
    barrier();
    const uint pair = tid / PARTS, part = tid % PARTS, team = pair / (SUMS / 2u), v = pair % (SUMS / 2u) * 2u;
    vec2 sum = vec2(0.0);
    for (uint l = part; l < LANES; l += PARTS) {
        sum += vec2(sum_s[v * PITCH + team * LANES + l], sum_s[(v + 1u) * PITCH + team * LANES + l]);
    }
    pair_s[tid] = sum;
    for (uint s = PARTS / 2u; s > 0u; s /= 2u) {
        barrier();
        if (part < s) pair_s[tid] += pair_s[tid + s];
    }
    const uint n = first + team * ROWS + v % ROWS, token = t0 + v / ROWS;
    if (part == 0u && n < pc.n && token < pc.tokens) {
        vec2 y = pair_s[tid] * (WEIGHT_UNSCALE * ACT_UNSCALE);
        const uint row = group * pc.n + n;
        if (ROW_SCALES) y *= vec2(row_scale.v[row], row_scale.v[row + 1u]);
#ifdef NORMS
        if (pc.norm_addr != uint64_t(0)) norm_put(token, row, bf16_pack2(y.x, y.y));
        else y_store2(token, row, y.x, y.y);
#else
        y_store2(token, row, y.x, y.y);
#endif
    }
}

void main() {
    const uint t0 = gl_WorkGroupID.y * TOKENS, first = gl_WorkGroupID.x * TEAMS * ROWS;
#ifdef NORMS
    const bool rehearsed = rehearses(first);
    if (!rehearsed) products(gl_WorkGroupID.z, t0, first);
    if (rehearsed || norm_mine(first, TEAMS * ROWS)) norm_rows(t0, rehearsed);
#else
    products(gl_WorkGroupID.z, t0, first);
#endif
}
