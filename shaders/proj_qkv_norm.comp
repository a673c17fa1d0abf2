#version 460
// Norms of the query's bottleneck and of the K row: for token t, x = columns qr_at .. qr_at+RANK-1 of qr[t], n = RANK,
// w = qr_weight, and x = columns kv_at .. kv_at+511 of kv[t], n = 512, w = kv_weight:
//   r = (sum_i x_i^2 / n + eps)^-0.5,  out_i = bf16((x_i * r) * w_i)          each product in binary32
// Bindings, of builds without _da:
//            0 qr [T, qr_width] bf16   1 kv [T, kv_width] bf16   2 qr_weight [RANK] bf16 or f32   3 kv_weight [512] bf16 or f32
//            4 qr_out [T, RANK] bf16   5 kv_out [T, 512] bf16     0 and 1 may be one tensor
// Workgroup: token gl_WorkGroupID.x; y = 0 its query row, y = 1 its K row. An invocation has every 128th unit of 8 values.
// Constants: 0 RANK, a multiple of 8.  Shared memory: 528 bytes.  Features: none; _da: bufferDeviceAddress, shaderInt64.
// Widths and columns are multiples of 8 and counted in units of 8 values.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/tensors.glsl"

const uint LANES = 128u;
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint RANK = 1024;
shared vec4 rms_of[LANES / 4u];
shared vec4 part_of; // sums of 32 invocations
#include "lib/qkv_norm.glsl"

void main() {
    const uint lane = gl_LocalInvocationID.x;
    uvec4 w[STEPS], g[STEPS], h[STEPS];
    norm_load(lane, w, g, h);
    precise float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < STEPS; i++) sum = sum + rms_squares(w[i]);
    rms_of[lane / 4u][lane % 4u] = sum;
    barrier();
    if (lane < 4u) part_of[lane] = rms_sum32(32u * lane);
    barrier();
    precise float all = (part_of.x + part_of.y) + (part_of.z + part_of.w);
    norm_store(lane, all, w, g, h);
}
