// The attention's output for an FP8 product: for token t at position p, head h = g*P + j, group g,
// x = o[t,h] in binary32 with x[448..511] turned back at p, not rounded; for block c = 0..3 of 128
//   sb = byte of 2^ceil(log2(max(amax, 1e-10)/448)),  codes[g,t,j*512+d] = e4m3(x[d] * 2^(127-sb))
//   scales[g,j*4+c,t] = 2^(sb-127), f32 [G,P*4,Ta]; PACKED byte c of [g,j,t] = sb, u32 [G,P,Ta]
// Shared memory: 544 B.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64; with LANES_PASS those of
//   lib/lanes.glsl.
// Bindings: 0 positions [T] i32, 1 table [rows,64] f32 (lib/rope.glsl), 2 scales, 3 o [T,width,512]
//   bf16, width >= H, 4 codes [G,T,P*512] u8; with ADDRESSED all by address.
// Workgroup: 2 heads (x) of token y < Ta, 64 invocations each with 8 numbers.
// Constants: 0 P, heads of a group, 1 PACKED, 2 SUBGROUP.
// Ta is T rounded up to a multiple of 4; scales of t >= T are 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/tensors.glsl"
#include "lib/bf16.glsl"
#include "lib/e4m3.glsl"
#include "lib/ue8m0.glsl"
#include "lib/rope.glsl"

const uint HEADS = 2u;  // of a workgroup
const uint UNITS = 64u; // of a head, and its invocations
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint P = 8;
layout(constant_id = 1) const uint PACKED = 0;
layout(constant_id = 2) const uint SUBGROUP = 32;
#include "lib/lanes.glsl"

layout(push_constant) uniform Push {
    ADDRESS positions_addr;
    ADDRESS table_addr;
    ADDRESS scales_addr;
    ADDRESS o_addr;
    ADDRESS codes_addr;
    uint heads;      // H
    uint width;      // heads of a row of o
    uint tokens;     // T
    uint padded;     // Ta
    uint table_rows;
} pc;
TENSOR(int, positions, 0)
TENSOR(uvec4, table, 1)
ROPE_TABLE4(table)
TENSOR_OUT(uint, scales, 2)
TENSOR(uvec4, o, 3)
TENSOR_OUT(uvec2, codes, 4)

shared uint bytes_of[8]; // of the workgroup's blocks

uint max4(uvec4 m) { return max(max(m.x, m.y), max(m.z, m.w)); }

uint scale_byte(uint amax) { return ue8m0_encode(uintBitsToFloat(amax), UE8M0_EPS_OUT, UE8M0_INV_E4M3); }

// largest: the bits of the largest magnitude. That of floats passes over NaNs; the sum, of
// magnitudes made so small that nothing finite overflows, shows that there is one, or an infinity;
// by its bits, because compilers may turn a comparison round, which a NaN fails.
uint largest(vec4 a, vec4 b) {
    const float small = uintBitsToFloat(0x00800000u); // 2^-126
    const vec4 m = max(abs(a), abs(b));
    precise vec4 n = abs(a) * small + abs(b) * small;
    precise float sum = (n.x + n.y) + (n.z + n.w);
    uint amax = floatBitsToUint(max(max(m.x, m.y), max(m.z, m.w)));
    if (floatBitsToUint(sum) >= floatBitsToUint(64.0))
        amax = max(max4(floatBitsToUint(a) & 0x7FFFFFFFu), max4(floatBitsToUint(b) & 0x7FFFFFFFu));
    return amax;
}

uint signs(vec4 a) {
    const uvec4 v = floatBitsToUint(a);
    return ((v.x >> 24) | ((v.y >> 16) & 0xFF00u) | ((v.z >> 8) & 0xFF0000u) | (v.w & 0xFF000000u)) & 0x80808080u;
}

// codes4: of a block whose numbers are finite. Its scale keeps them at most 448 but for the
// rounding of 1/448. A product is exact unless it underflows, far below the smallest code.
uint codes4(vec4 a, float inverse) {
    precise vec4 y = a * (inverse * 128.0);
    return e4m3_codes4(y) | signs(a);
}

// codes4_any: of any block.
uint codes4_any(vec4 a, float inverse) {
    uint w = 0u;
    [[dont_unroll]] for (uint j = 0u; j < 4u; j++) {
        const uint u = floatBitsToUint(a.x), y = floatBitsToUint(uintBitsToFloat(u & 0x7FFFFFFFu) * inverse) & 0x7FFFFFFFu;
        w = (w >> 8) | (e4m3_encode_bits(y | (u & 0x80000000u)) << 24);
        a = a.yzwx;
    }
    return w;
}

void main() {
    const uint me = lanes_me(), lane = me % UNITS;
    const uint t = gl_WorkGroupID.y, own = gl_WorkGroupID.x * HEADS + me / UNITS, head = min(own, pc.heads - 1u);
    const bool live = own < pc.heads;
    if (t >= pc.tokens) { // the whole workgroup: scales that are 0
        if (live && PACKED != 0u && lane == 0u) scales_put(head * pc.padded + t, 0u);
        if (live && PACKED == 0u && lane < 4u) scales_put((head * 4u + lane) * pc.padded + t, 0u);
        return;
    }
    const int position = positions_at(t);
    const uvec4 w = o_at((t * pc.width + head) * UNITS + lane);
    vec4 near = vec4(0.0), far = vec4(0.0);
    const bool turns = lane >= UNITS - 8u;
    // Apart from their use, so that they are asked for before numbers are waited for.
    if (turns) table_cos_sin4(uint(clamp(position, 0, int(pc.table_rows) - 1)), lane % 8u * 4u, false, near, far);
    vec4 a = vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)), b = vec4(bf16_unpack2(w.z), bf16_unpack2(w.w));
    if (turns) {
        a = vec4(rope_unrotate(a.xy, near.xy), rope_unrotate(a.zw, near.zw));
        b = vec4(rope_unrotate(b.xy, far.xy), rope_unrotate(b.zw, far.zw));
    }
    uint amax = largest(a, b); // of the 16 invocations of a block
    [[unroll]] for (uint bit = 1u; bit < 16u; bit *= 2u) amax = max(amax, lanes_pass(amax, bit));
    const uint sb = scale_byte(amax);
    const float inverse = ue8m0_inverse(sb);
    uvec2 code;
    if (amax < 0x7F800000u) {
        code = uvec2(codes4(a, inverse), codes4(b, inverse));
    } else {
        [[dont_unroll]] for (uint k = 0u; k < 2u; k++) {
            code = uvec2(code.y, codes4_any(a, inverse));
            a = b;
        }
    }
    if (live) codes_put(((head / P * pc.tokens + t) * P + head % P) * UNITS + lane, code);
    if (PACKED != 0u) {
        if (lane % 16u == 0u) bytes_of[me / 16u] = sb;
        barrier();
        const uint first = me / UNITS * 4u;
        if (live && lane == 0u) {
            scales_put(head * pc.padded + t,
                bytes_of[first] | (bytes_of[first + 1u] << 8) | (bytes_of[first + 2u] << 16) | (bytes_of[first + 3u] << 24));
        }
    } else if (live && lane % 16u == 0u) {
        scales_put((head * 4u + lane / 16u) * pc.padded + t, sb << 23);
    }
}
