#version 460
// Norms of the query's bottleneck and of the K row: for token t, x = columns qr_at .. qr_at+RANK-1 of qr[t], n = RANK,
// w = qr_weight, and x = columns kv_at .. kv_at+511 of kv[t], n = 512, w = kv_weight:
//   r = (sum_i x_i^2 / n + eps)^-0.5,  out_i = bf16((x_i * r) * w_i)          each product in binary32
// Bindings:  0 qr [T, qr_width] bf16   1 kv [T, kv_width] bf16   2 qr_weight [RANK] bf16 or f32   3 kv_weight [512] bf16 or f32
//            4 qr_out [T, RANK] bf16   5 kv_out [T, 512] bf16     0 and 1 may be one tensor
// Workgroup: token gl_WorkGroupID.x; y = 0 its query row, y = 1 its K row. An invocation has every 128th unit of 8 values.
// Constants: 0 RANK, a multiple of 8.  Shared memory: 516 bytes.  Features: none.
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
shared float factor_of; // of the row
#include "lib/rms.glsl"

vec4 low(uvec4 w) { return vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)); }
vec4 high(uvec4 w) { return vec4(bf16_unpack2(w.z), bf16_unpack2(w.w)); }

// scaled: unit w of the row times r and the weights of unit u.
uvec4 scaled(uvec4 w, uint u, float r, bool is_kv) {
    bool wide = (is_kv ? pc.kv_f32 : pc.qr_f32) != 0u;
    vec4 a, b;
    if (wide) {
        a = uintBitsToFloat(is_kv ? kv_weight[2u * u] : qr_weight[2u * u]);
        b = uintBitsToFloat(is_kv ? kv_weight[2u * u + 1u] : qr_weight[2u * u + 1u]);
    } else {
        uvec4 both = is_kv ? kv_weight[u] : qr_weight[u];
        a = low(both);
        b = high(both);
    }
    precise vec4 x = (low(w) * r) * a;
    precise vec4 y = (high(w) * r) * b;
    return uvec4(rms_pack2(x.x, x.y), rms_pack2(x.z, x.w), rms_pack2(y.x, y.y), rms_pack2(y.z, y.w));
}

void main() {
    const uint lane = gl_LocalInvocationID.x, t = gl_WorkGroupID.x;
    const bool is_kv = gl_WorkGroupID.y != 0u;
    const uint units = is_kv ? KV_UNITS : RANK / 8u;

    uvec4 w[STEPS];
    precise float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = i * LANES + lane;
        w[i] = uvec4(0u);
        if (u < units) w[i] = is_kv ? kv[t * pc.kv_stride + pc.kv_at + u] : qr[t * pc.qr_stride + pc.qr_at + u];
        sum = sum + rms_squares(w[i]);
    }
    rms_of[lane / 4u][lane % 4u] = sum;
    barrier();
    if (lane == 0u) { // one of all: the others would read as much shared memory each
        precise float all = (rms_sum32(0u) + rms_sum32(32u)) + (rms_sum32(64u) + rms_sum32(96u));
        factor_of = rms_factor(all, is_kv ? 1.0 / 512.0 : pc.qr_inverse, pc.eps);
    }
    barrier();
    const float r = factor_of;
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = i * LANES + lane;
        if (u >= units) continue;
        const uvec4 y = scaled(w[i], u, r, is_kv);
        if (is_kv) kv_out[t * KV_UNITS + u] = y;
        else qr_out[t * (RANK / 8u) + u] = y;
    }
}
