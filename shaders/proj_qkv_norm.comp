#version 460
// Norms of the query's bottleneck and of the K row: for token t, x = columns qr_at .. qr_at+RANK-1 of qr[t], n = RANK,
// w = qr_weight, and x = columns kv_at .. kv_at+511 of kv[t], n = 512, w = kv_weight:
//   r = (sum_i x_i^2 / n + eps)^-0.5,  out_i = bf16((x_i * r) * w_i)          each product in binary32
// Bindings:  0 qr [T, qr_width] bf16   1 kv [T, kv_width] bf16   2 qr_weight [RANK] bf16 or f32   3 kv_weight [512] bf16 or f32
//            4 qr_out [T, RANK] bf16   5 kv_out [T, 512] bf16     0 and 1 may be one tensor
// Workgroup: token gl_WorkGroupID.x; y = 0 its query row, y = 1 its K row. An invocation has every 128th unit of 8 values.
// Constants: 0 RANK, a multiple of 8.  Shared memory: 528 bytes.  Features: none.
// Widths and columns are multiples of 8 and counted in units of 8 values.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

const uint LANES = 128u;
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint RANK = 1024;
const uint STEPS = (RANK / 8u + LANES - 1u) / LANES;
const uint KV_UNITS = 64u;

layout(std430, set = 0, binding = 0) readonly buffer Qr { uvec4 qr[]; };
layout(std430, set = 0, binding = 1) readonly buffer Kv { uvec4 kv[]; };
layout(std430, set = 0, binding = 2) readonly buffer QrWeight { uvec4 qr_weight[]; };
layout(std430, set = 0, binding = 3) readonly buffer KvWeight { uvec4 kv_weight[]; };
layout(std430, set = 0, binding = 4) writeonly buffer QrOut { uvec4 qr_out[]; };
layout(std430, set = 0, binding = 5) writeonly buffer KvOut { uvec4 kv_out[]; };

layout(push_constant) uniform Push {
    uint qr_stride; // units of a row of qr
    uint qr_at;     // unit of its first column
    uint kv_stride;
    uint kv_at;
    uint qr_f32;    // 1 if qr_weight is f32
    uint kv_f32;
    float qr_inverse; // 1 / RANK
    float eps;
} pc;

shared vec4 rms_of[LANES / 4u];
shared vec4 part_of; // sums of 32 invocations
#include "lib/rms.glsl"

// gains: the weights of unit u.
void gains(uint u, bool is_kv, out vec4 a, out vec4 b) {
    if ((is_kv ? pc.kv_f32 : pc.qr_f32) != 0u) {
        a = uintBitsToFloat(is_kv ? kv_weight[2u * u] : qr_weight[2u * u]);
        b = uintBitsToFloat(is_kv ? kv_weight[2u * u + 1u] : qr_weight[2u * u + 1u]);
    } else {
        const uvec4 both = is_kv ? kv_weight[u] : qr_weight[u];
        a = vec4(bf16_unpack2(both.x), bf16_unpack2(both.y));
        b = vec4(bf16_unpack2(both.z), bf16_unpack2(both.w));
    }
}

void main() {
    const uint lane = gl_LocalInvocationID.x, t = gl_WorkGroupID.x;
    const bool is_kv = gl_WorkGroupID.y != 0u;
    const uint units = is_kv ? KV_UNITS : RANK / 8u;

    uvec4 w[STEPS];
    vec4 a[STEPS], b[STEPS];
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = i * LANES + lane;
        w[i] = uvec4(0u);
        if (u < units) {
            w[i] = is_kv ? kv[t * pc.kv_stride + pc.kv_at + u] : qr[t * pc.qr_stride + pc.qr_at + u];
            gains(u, is_kv, a[i], b[i]); // under way before anything waits
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
        const uvec4 y = rms_scaled(w[i], r, a[i], b[i]);
        if (is_kv) kv_out[t * KV_UNITS + u] = y;
        else qr_out[t * (RANK / 8u) + u] = y;
    }
}
