// Norms of the query's bottleneck and of the K row: for token t, for
// x = columns qr_at .. qr_at+RANK-1 of qr[t], n = RANK, w = qr_weight, and for
// x = columns kv_at .. kv_at+511 of kv[t], n = 512, w = kv_weight, in binary32
//   r = (sum_i x_i^2 / n + eps)^-0.5,  out_i = bf16((x_i * r) * w_i)
// Shared memory: 528 B.
// Features: none; with KV_DA bufferDeviceAddress, shaderInt64.
// Bindings: 0 qr [T,qr_width] bf16, 1 kv [T,kv_width] bf16, 2 qr_weight [RANK] bf16 or f32, 3
//   kv_weight [512] bf16 or f32, 4 qr_out [T,RANK] bf16, 5 kv_out [T,512] bf16; 0 and 1 may be one
//   tensor; KV_DA builds reach all by address.
// Workgroup: token x; y = 0 its query row, y = 1 its K row. An invocation has every 128th unit of 8
//   numbers.
// Constants: 0 RANK, a multiple of 8.
// Widths and columns are multiples of 8 and counted in units of 8 numbers.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/tensors.glsl"

const uint LANES = 128u;
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint RANK = 1024;
const uint STEPS = (RANK / 8u + LANES - 1u) / LANES;
const uint KV_UNITS = 64u;
#include "lib/qkv_norm.glsl"

shared vec4 rms_of[LANES / 4u];
shared vec4 part_of; // sums of 32 invocations
#include "lib/rms.glsl"

uvec4 weight_at(uint u, bool is_kv) { return is_kv ? kv_weight_at(u) : qr_weight_at(u); }

void main() {
    const uint lane = gl_LocalInvocationID.x, t = gl_WorkGroupID.x;
    const bool is_kv = gl_WorkGroupID.y != 0u, f32 = (is_kv ? pc.kv_f32 : pc.qr_f32) != 0u;
    const uint units = is_kv ? KV_UNITS : RANK / 8u;

    uvec4 w[STEPS], g[STEPS], h[STEPS]; // all under way before anything waits
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = i * LANES + lane;
        w[i] = g[i] = h[i] = uvec4(0u);
        if (u < units) {
            w[i] = is_kv ? kv_at(t * pc.kv_stride + pc.kv_at + u) : qr_at(t * pc.qr_stride + pc.qr_at + u);
            g[i] = weight_at(f32 ? 2u * u : u, is_kv);
            if (f32) h[i] = weight_at(2u * u + 1u, is_kv);
        }
    }
    precise float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < STEPS; i++) sum = sum + rms_squares(w[i]);
    rms_of[lane / 4u][lane % 4u] = sum;
    barrier();
    if (lane < 4u) part_of[lane] = rms_sum32(32u * lane);
    barrier();
    precise float all = (part_of.x + part_of.y) + (part_of.z + part_of.w);
    const float r = rms_factor(all, is_kv ? 1.0 / 512.0 : pc.qr_inverse, pc.eps);
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = i * LANES + lane;
        if (u >= units) continue;
        vec4 a, b;
        norm_gains(g[i], h[i], f32, a, b);
        const uvec4 y = rms_scaled(w[i], r, a, b);
        if (is_kv) kv_out_put(t * KV_UNITS + u, y);
        else qr_out_put(t * (RANK / 8u) + u, y);
    }
}
