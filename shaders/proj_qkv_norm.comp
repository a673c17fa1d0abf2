// Norms of the query's bottleneck and of the K row: for token t, for
// x = columns qr_at .. qr_at+RANK-1 of qr[t], n = RANK, w = qr_weight, and for
// x = columns kv_at .. kv_at+511 of kv[t], n = 512, w = kv_weight, in binary32
//   r = (sum_i x_i^2 / n + eps)^-0.5,  out_i = bf16((x_i * r) * w_i)
// Shared memory: 656 B.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64; with LANES_PASS those of
//   lib/lanes.glsl.
// Bindings: 0 qr [T,qr_width] bf16, 1 kv [T,kv_width] bf16, 2 qr_weight [RANK] bf16 or f32, 3
//   kv_weight [512] bf16 or f32, 4 qr_out [T,RANK] bf16, 5 kv_out [T,512] bf16; 0 and 1 may be one
//   tensor; with ADDRESSED all by address.
// Workgroup: token x; y = 0 its query row, y = 1 its K row. An invocation has every 64th unit of 8
//   numbers.
// Constants: 0 RANK, a multiple of 8, 1 SUBGROUP.
// Widths and columns are multiples of 8 and counted in units of 8 numbers.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/tensors.glsl"

const uint LANES = 64u;
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint RANK = 1024;
layout(constant_id = 1) const uint SUBGROUP = 32;
#include "lib/lanes.glsl"
const uint UNITS = RANK / 8u;
const uint STEPS = (UNITS + LANES - 1u) / LANES;
const uint KV_UNITS = 64u;
#include "lib/qkv_norm.glsl"

shared vec4 rms_of[8]; // lib/rms.glsl names it, and nothing here uses it
shared vec4 part_of;   // of units 0 to 31, 32 to 63, 64 to 95 and 96 to 127 of 128
#include "lib/rms.glsl"

// row_sum: first sums are of every 128th unit, then over 32 units that lie side by side. An
// invocation has two first sums, and gives one of them away in the first step.
float row_sum(uint lane, float even, float odd) {
    const bool upper = (lane & 4u) != 0u;
    precise float a = (upper ? odd : even) + lanes_pass(upper ? even : odd, 4u);
    precise float b = a + lanes_pass(a, 8u);
    precise float c = b + lanes_pass(b, 16u);
    precise float d = c + lanes_pass(c, 1u);
    precise float part = d + lanes_pass(d, 2u);
    if (lane % 32u == 0u || lane % 32u == 4u) part_of[lane / 32u + (upper ? 2u : 0u)] = part;
    barrier();
    precise float all = (part_of.x + part_of.y) + (part_of.z + part_of.w);
    return all;
}

void kv_row(uint t, uint lane) {
    const bool f32 = pc.kv_f32 != 0u;
    const uvec4 w = kv_at(t * pc.kv_stride + pc.kv_at + lane), g = kv_weight_at(f32 ? 2u * lane : lane);
    uvec4 h = uvec4(0u);
    if (f32) h = kv_weight_at(2u * lane + 1u);
    const float r = rms_factor(row_sum(lane, rms_squares(w), 0.0), 1.0 / 512.0, pc.eps);
    vec4 a, b;
    norm_gains(g, h, f32, a, b);
    kv_out_put(t * KV_UNITS + lane, rms_scaled(w, r, a, b));
}

// Arrays stay in here: handed to functions they cost 0.5 us. The last step may end within
// the invocations.
void query_row(uint t, uint lane) {
    const bool f32 = pc.qr_f32 != 0u;
    const uint row = t * pc.qr_stride + pc.qr_at;
    uvec4 w[STEPS], g[STEPS], h[STEPS]; // all under way before anything waits
    [[unroll]] for (uint i = 0u; i < STEPS; i++) w[i] = qr_at(row + min(i * LANES + lane, UNITS - 1u));
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = min(i * LANES + lane, UNITS - 1u);
        g[i] = qr_weight_at(f32 ? 2u * u : u);
        h[i] = uvec4(0u);
        if (f32) h[i] = qr_weight_at(2u * u + 1u);
    }
    float sum[2] = float[2](0.0, 0.0);
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const bool inside = i * LANES + LANES <= UNITS || i * LANES + lane < UNITS;
        precise float s = sum[i % 2u] + (inside ? rms_squares(w[i]) : 0.0);
        sum[i % 2u] = s;
    }
    const float r = rms_factor(row_sum(lane, sum[0], sum[1]), pc.qr_inverse, pc.eps);
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        const uint u = i * LANES + lane;
        if (i * LANES + LANES <= UNITS || u < UNITS) {
            vec4 a, b;
            norm_gains(g[i], h[i], f32, a, b);
            qr_out_put(t * UNITS + u, rms_scaled(w[i], r, a, b));
        }
    }
}

void main() {
    if (gl_WorkGroupID.y != 0u) kv_row(gl_WorkGroupID.x, lanes_me());
    else query_row(gl_WorkGroupID.x, lanes_me());
}
