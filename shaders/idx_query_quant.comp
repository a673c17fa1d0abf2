// Indexer queries: for token t at position p and head h, x = q[t,h] with dims 64..127 turned
// forward at p, rounded to bf16; with HADAMARD x_i = bf16(128^-0.5 sum_j (-1)^popcount(i & j) x_j).
// Then, sb the byte of 2^ceil(log2(max(amax, eps)/M)):
//   FP8:   one block, eps 1e-4, M 448: codes[d] = e4m3(x_d * 2^(127-sb)),
//          w_out = ((w * 2^(sb-127)) * softmax_scale) * head_scale
//   MXFP4: 4 blocks of 32, eps 6*2^-126, M 6: nibbles e2m1(x_d * 2^(127-sb)), scales[b] = sb,
//          w_out = (w * softmax_scale) * head_scale
// A position outside the table counts as its nearest row.
// Bindings:  0 q [T, H, 128] bf16   1 positions [T] i32   2 weights [T, H] bf16
//            3 table [rows, 64] f32 or bf16 (cos, sin)   4 codes [T, H, 128] u8 or [T, H, 64] u8
//            5 scales [T, H, 4] u8 (MXFP4)   6 w_out [T, H] f32   (none with ADDRESSED)
// Workgroup: 8 heads of token gl_WorkGroupID.y, 16 invocations each, which have 8 neighbouring
//   values. Those whose values are turned come behind the others, so that no subgroup has both.
// Constants: 0 MXFP4, 1 TABLE_BF16, 2 HADAMARD, each 0 or 1.
// Shared memory: 4608 bytes.  Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/tensors.glsl"
#include "lib/rope_bf16.glsl"

const uint HEADS = 8u;  // of a workgroup
const uint LANES = 16u; // of a head
const uint HALF = LANES / 2u;
const uint TURNED = HEADS * HALF; // the first invocation whose numbers are turned
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint MXFP4 = 0;
layout(constant_id = 1) const uint TABLE_BF16 = 0;
layout(constant_id = 2) const uint HADAMARD = 0;
const bool QUERY_FP4 = MXFP4 != 0u;
#include "lib/index_query.glsl"

layout(push_constant) uniform Push {
    ADDRESS q_addr;
    ADDRESS positions_addr;
    ADDRESS weights_addr;
    ADDRESS table_addr;
    ADDRESS codes_addr;
    ADDRESS scales_addr;
    ADDRESS folded_addr;
    uint heads;         // H
    uint table_rows;
    float softmax_scale;
    float head_scale;
} pc;
TENSOR(uvec4, q, 0)
TENSOR(int, positions, 1)
TENSOR(uint, weights, 2)
TENSOR(uvec4, table, 3)
ROPE_TABLE4(table)
TENSOR_OUT(uvec2, codes, 4)
#ifdef ADDRESSED
void codes_put_word(uint i, uint x) { Write_uint(pc.codes_addr).v[i] = x; }
#else
void codes_put_word(uint i, uint x) { codes_buf.v[i >> 1][i & 1u] = x; }
#endif
TENSOR_OUT(uint, scales, 5)
TENSOR_OUT(float, folded, 6) // w_out

shared uvec4 amax_of[HEADS * LANES / 4u]; // of every invocation, bf16 bits without sign: they order like the numbers
shared vec4 mix_of[2u * HEADS * LANES]; // HADAMARD: 8 values of every invocation

// mix8: all stages of the Walsh-Hadamard transform of the 128 values of a head, then the
// scale and the rounding. Strides 1, 2 and 4 stay within an invocation.
uvec4 mix8(uvec4 w, uint lane) {
    const uint me = gl_LocalInvocationID.x;
    vec4 a = vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)), b = vec4(bf16_unpack2(w.z), bf16_unpack2(w.w));
    a = vec4(a.x + a.y, a.x - a.y, a.z + a.w, a.z - a.w);
    b = vec4(b.x + b.y, b.x - b.y, b.z + b.w, b.z - b.w);
    a = vec4(a.xy + a.zw, a.xy - a.zw);
    b = vec4(b.xy + b.zw, b.xy - b.zw);
    vec4 sum = a + b;
    b = a - b;
    a = sum;
    [[unroll]] for (uint far = 1u; far < LANES; far *= 2u) {
        mix_of[2u * me] = a;
        mix_of[2u * me + 1u] = b;
        barrier();
        const uint other = me ^ (far < HALF ? far : TURNED);
        vec4 c = mix_of[2u * other], d = mix_of[2u * other + 1u];
        barrier();
        bool upper = (lane & far) != 0u;
        a = upper ? c - a : a + c;
        b = upper ? d - b : b + d;
    }
    const float scale = uintBitsToFloat(0x3DB504F3u); // 128^-0.5
    a *= scale;
    b *= scale;
    return uvec4(bf16_pack2(a.x, a.y), bf16_pack2(a.z, a.w), bf16_pack2(b.x, b.y), bf16_pack2(b.z, b.w));
}

void main() {
    const uint me = gl_LocalInvocationID.x;
    const uint lane = me % HALF + (me < TURNED ? 0u : HALF);
    const uint t = gl_WorkGroupID.y;
    const uint head = gl_WorkGroupID.x * HEADS + me % TURNED / HALF;
    const bool live = head < pc.heads;
    const uint row = t * pc.heads + head;

    uvec4 w = uvec4(0u);
    uint weight = 0u;
    if (live) {
        w = q_at(row * LANES + lane);
        if (lane == 0u) weight = weights_at(row >> 1) >> (16u * (row & 1u));
    }
    if (me >= TURNED) {
        vec4 near, far;
        table_cos_sin4(uint(clamp(positions_at(t), 0, int(pc.table_rows) - 1)), (lane - HALF) * 4u, TABLE_BF16 != 0u, near, far);
        w = rope_bf16_words(w, near, far);
    }
    if (HADAMARD != 0u) w = mix8(w, lane);

    amax_of[me / 4u][me % 4u] = max4(max(w & 0x7FFFu, (w >> 16) & 0x7FFFu));
    barrier();
    if (!live) return;

    float folded = bf16_decode(weight);
    if (MXFP4 != 0u) {
        const uint amax = max4(amax_of[me / 4u]); // 4 invocations have a block
        const uint sb = scale_byte(amax);
        codes_put_word(row * LANES + lane, encode(w, amax, sb).x);
        if (lane == 0u) {
            const uint first = me / 4u;
            scales_put(row, sb | (scale_byte(max4(amax_of[first + 1u])) << 8) |
                            (scale_byte(max4(amax_of[first + TURNED / 4u])) << 16) |
                            (scale_byte(max4(amax_of[first + TURNED / 4u + 1u])) << 24));
        }
    } else {
        const uint first = me % TURNED / HALF * (HALF / 4u), turned = first + TURNED / 4u;
        const uint amax = max4(max(max(amax_of[first], amax_of[first + 1u]), max(amax_of[turned], amax_of[turned + 1u])));
        const uint sb = scale_byte(amax);
        codes_put(row * LANES + lane, encode(w, amax, sb));
        precise float s = folded * ue8m0_scale(sb);
        folded = s;
    }
    if (lane == 0u) {
        precise float a = folded * pc.softmax_scale;
        precise float b = a * pc.head_scale;
        folded_put(row, b);
    }
}
