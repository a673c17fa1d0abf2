#version 460
// What proj_qkv_norm.comp computes, to the same bits, with 64 invocations a row and sums passed on inside subgroups: for token t,
// x = columns qr_at .. qr_at+RANK-1 of qr[t], n = RANK, w = qr_weight, and x = columns kv_at .. kv_at+511 of kv[t], n = 512, w = kv_weight:
//   r = (sum_i x_i^2 / n + eps)^-0.5,  out_i = bf16((x_i * r) * w_i)          each product in binary32
// Bindings, of builds without _da:
//            0 qr [T, qr_width] bf16   1 kv [T, kv_width] bf16   2 qr_weight [RANK] bf16 or f32   3 kv_weight [512] bf16 or f32
//            4 qr_out [T, RANK] bf16   5 kv_out [T, 512] bf16     0 and 1 may be one tensor
// Workgroup: token gl_WorkGroupID.x; y = 0 its query row, y = 1 its K row. An invocation has every 64th unit of 8 values.
// Constants: 0 RANK, a multiple of 8, 1 SUBGROUP.  Shared memory: 656 bytes.  Features: lib/lanes.glsl; _da: bufferDeviceAddress, shaderInt64.
// Widths and columns are multiples of 8 and counted in units of 8 values.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/tensors.glsl"

const uint LANES = 64u;
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint RANK = 1024;
layout(constant_id = 1) const uint SUBGROUP = 32;
#include "lib/lanes.glsl"
shared vec4 rms_of[8]; // lib/rms.glsl names it, and nothing here uses it
shared vec4 part_of;   // of units 0 to 31, 32 to 63, 64 to 95 and 96 to 127 of 128
#include "lib/qkv_norm.glsl"

void main() {
    const uint lane = lanes_me();
    uvec4 w[STEPS], g[STEPS], h[STEPS];
    norm_load(lane, w, g, h);
    // The sums of proj_qkv_norm.comp are of every 128th unit, then over 32 units that lie side by side. An invocation here has
    // units of two of its invocations, and gives the sum over one of them away in the first step.
    float sum[2] = float[2](0.0, 0.0);
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        precise float s = sum[i % 2u] + rms_squares(w[i]);
        sum[i % 2u] = s;
    }
    const bool upper = (lane & 4u) != 0u;
    precise float a = (upper ? sum[1] : sum[0]) + lanes_pass(upper ? sum[0] : sum[1], 4u);
    precise float b = a + lanes_pass(a, 8u);
    precise float c = b + lanes_pass(b, 16u);
    precise float d = c + lanes_pass(c, 1u);
    precise float part = d + lanes_pass(d, 2u);
    if (lane % 32u == 0u || lane % 32u == 4u) part_of[lane / 32u + (upper ? 2u : 0u)] = part;
    barrier();
    precise float all = (part_of.x + part_of.y) + (part_of.z + part_of.w);
    norm_store(lane, all, w, g, h);
}
