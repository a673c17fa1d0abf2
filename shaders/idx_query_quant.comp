#version 460
// Indexer queries: for token t at position p and head h, x = q[t,h] with dims 64..127 turned forward at p, rounded to
// bf16; with HADAMARD x_i = bf16(128^-0.5 sum_j (-1)^popcount(i & j) x_j). Then, sb the byte of 2^ceil(log2(max(amax, eps)/M)):
//   FP8:   one block, eps 1e-4, M 448: codes[d] = e4m3(x_d * 2^(127-sb)); w_out = ((w * 2^(sb-127)) * softmax_scale) * head_scale
//   MXFP4: 4 blocks of 32, eps 6*2^-126, M 6: nibbles e2m1(x_d * 2^(127-sb)), scales[b] = sb; w_out = (w * softmax_scale) * head_scale
// Bindings:  0 q [T, H, 128] bf16   1 positions [T] i32   2 weights [T, H] bf16   3 table [rows, 64] f32 or bf16 (cos, sin)
//            4 codes [T, H, 128] u8 or [T, H, 64] u8   5 scales [T, H, 4] u8 (MXFP4)   6 w_out [T, H] f32
// Workgroup: 8 heads of token gl_WorkGroupID.y, 16 invocations each, which have 8 neighbouring values; no early return.
// Constants: 0 MXFP4, 1 TABLE_BF16, 2 HADAMARD, each 0 or 1.  Shared memory: 4608 bytes.  Features: none.
// A position outside the table counts as its nearest row.
#extension GL_GOOGLE_include_directive : require
#include "lib/bf16.glsl"
#include "lib/e4m3.glsl"
#include "lib/e2m1.glsl"
#include "lib/ue8m0.glsl"
#include "lib/rope_bf16.glsl"

const uint HEADS = 8u;  // of a workgroup
const uint LANES = 16u; // of a head
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint MXFP4 = 0;
layout(constant_id = 1) const uint TABLE_BF16 = 0;
layout(constant_id = 2) const uint HADAMARD = 0;

layout(std430, set = 0, binding = 0) readonly buffer Q { uvec4 q[]; };
layout(std430, set = 0, binding = 1) readonly buffer Positions { int positions[]; };
layout(std430, set = 0, binding = 2) readonly buffer Weights { uint weights[]; };
ROPE_TABLE(table, 3)
layout(std430, set = 0, binding = 4) writeonly buffer Codes { uvec2 codes[]; };
layout(std430, set = 0, binding = 5) writeonly buffer Scales { uint scales[]; };
layout(std430, set = 0, binding = 6) writeonly buffer WeightsOut { float weights_out[]; };

layout(push_constant) uniform Push {
    uint heads;         // H
    uint table_rows;
    float softmax_scale;
    float head_scale;
} pc;

shared uint amax_of[HEADS * LANES];     // bf16 bits without sign: they order like the numbers
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
    for (uint far = 1u; far < LANES; far *= 2u) {
        mix_of[2u * me] = a;
        mix_of[2u * me + 1u] = b;
        barrier();
        vec4 c = mix_of[2u * (me ^ far)], d = mix_of[2u * (me ^ far) + 1u];
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

// scaled: bits of the bf16 number x times 2^(127-sb), a subnormal x included. A product
// that underflows is far below the smallest code; the sign is put back behind it.
uint scaled(uint x, uint sb) {
    uint a = x & 0x7FFFu;
    float normal = uintBitsToFloat(a << 16) * ue8m0_inverse(sb);
    float tiny = float(a) * uintBitsToFloat(uint(max(121 - int(sb), 0)) << 23); // a * 2^-133 * 2^(127-sb)
    float y = a < 0x80u ? tiny : normal;
    return (floatBitsToUint(y) & 0x7FFFFFFFu) | ((x & 0x8000u) << 16);
}

uint encode_fp8x4(uvec2 w, uint sb) {
    return e4m3_encode_bits(scaled(w.x & 0xFFFFu, sb)) | (e4m3_encode_bits(scaled(w.x >> 16, sb)) << 8) |
           (e4m3_encode_bits(scaled(w.y & 0xFFFFu, sb)) << 16) | (e4m3_encode_bits(scaled(w.y >> 16, sb)) << 24);
}

uint encode_fp4x2(uint w, uint sb) {
    return e2m1_encode_bits(scaled(w & 0xFFFFu, sb)) | (e2m1_encode_bits(scaled(w >> 16, sb)) << 4);
}

// scale_byte: the byte of the values of n invocations from first on.
uint scale_byte(uint first, uint n) {
    uint amax = 0u;
    for (uint i = 0u; i < n; i++) amax = max(amax, amax_of[first + i]);
    float m = uintBitsToFloat(amax << 16);
    return MXFP4 != 0u ? ue8m0_encode(m, UE8M0_EPS_MXFP4, UE8M0_INV_E2M1) : ue8m0_encode(m, UE8M0_EPS_KV, UE8M0_INV_E4M3);
}

void main() {
    const uint me = gl_LocalInvocationID.x;
    const uint lane = me % LANES;
    const uint t = gl_WorkGroupID.y;
    const uint head = gl_WorkGroupID.x * HEADS + me / LANES;
    const bool live = head < pc.heads;
    const uint row = t * pc.heads + head;

    uvec4 w = uvec4(0u);
    uint weight = 0u;
    if (live) {
        w = q[row * LANES + lane];
        if (lane == 0u) weight = weights[row >> 1] >> (16u * (row & 1u));
    }
    if (lane >= LANES / 2u) {
        const uint at = uint(clamp(positions[t], 0, int(pc.table_rows) - 1));
        const uint pair = (lane - LANES / 2u) * 4u;
        const vec4 a = table_cos_sin2(at, pair, TABLE_BF16 != 0u);
        const vec4 b = table_cos_sin2(at, pair + 2u, TABLE_BF16 != 0u);
        w = uvec4(rope_bf16(w.x, a.xy), rope_bf16(w.y, a.zw), rope_bf16(w.z, b.xy), rope_bf16(w.w, b.zw));
    }
    if (HADAMARD != 0u) w = mix8(w, lane);

    const uvec4 m = max(w & 0x7FFFu, (w >> 16) & 0x7FFFu);
    amax_of[me] = max(max(m.x, m.y), max(m.z, m.w));
    barrier();
    if (!live) return;

    float folded = bf16_decode(weight);
    if (MXFP4 != 0u) {
        const uint sb = scale_byte(me & ~3u, 4u);
        const uint word = encode_fp4x2(w.x, sb) | (encode_fp4x2(w.y, sb) << 8) | (encode_fp4x2(w.z, sb) << 16) | (encode_fp4x2(w.w, sb) << 24);
        codes[row * (LANES / 2u) + lane / 2u][lane & 1u] = word;
        if (lane == 0u) {
            scales[row] = sb | (scale_byte(me + 4u, 4u) << 8) | (scale_byte(me + 8u, 4u) << 16) | (scale_byte(me + 12u, 4u) << 24);
        }
    } else {
        const uint sb = scale_byte(me - lane, LANES);
        codes[row * LANES + lane] = uvec2(encode_fp8x4(w.xy, sb), encode_fp8x4(w.zw, sb));
        precise float s = folded * ue8m0_scale(sb);
        folded = s;
    }
    if (lane == 0u) {
        precise float a = folded * pc.softmax_scale;
        precise float b = a * pc.head_scale;
        weights_out[row] = b;
    }
}
