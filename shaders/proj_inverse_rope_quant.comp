#version 460
// The attention's output for an FP8 product: for token t at position p, head h = g*P + j of group g, x = o[t,h] in binary32
// with x[448..511] turned back at p (not rounded); block c = 0..3 of 128:
//   sb = byte of 2^ceil(log2(max(amax, 1e-10)/448)),  codes[g,t,j*512+d] = e4m3(x[d] * 2^(127-sb))
//   scales: f32 [G, P*4, Ta], element (g, j*4+c, t) = 2^(sb-127), or with PACKED u32 [G, P, Ta], byte c of (g, j, t) = sb
// Ta is T rounded up to a multiple of 4; scales of t >= T are 0.
// Bindings:  0 positions [T] i32   1 table [rows, 64] f32 (lib/rope.glsl)   2 scales
//            3 o [T, width, 512] bf16, width >= H   4 codes [G, T, P*512] u8     (3 and 4 not in _da builds)
// Workgroup: 4 heads of token gl_WorkGroupID.y < Ta, 32 invocations each with two units of 8 values.
// Constants: 0 P, heads of a group, 1 PACKED.  Shared memory: 1024 bytes.  Features: none; _da: bufferDeviceAddress, shaderInt64.
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_page.glsl"
#include "lib/rows.glsl"
#include "lib/bf16.glsl"
#include "lib/e4m3.glsl"
#include "lib/ue8m0.glsl"
#include "lib/rope.glsl"

const uint HEADS = 4u;  // of a workgroup
const uint LANES = 32u; // of a head
const uint UNITS = 64u; // of a head
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint P = 8;
layout(constant_id = 1) const uint PACKED = 0;

layout(std430, set = 0, binding = 0) readonly buffer Positions { int positions[]; };
ROPE_TABLE(table, 1)
layout(std430, set = 0, binding = 2) writeonly buffer Scales { uint scales[]; };

layout(push_constant) uniform Push {
    KV_ADDR o_addr;
    KV_ADDR codes_addr;
    uint heads;      // H
    uint width;      // heads of a row of o
    uint tokens;     // T
    uint padded;     // Ta
    uint table_rows;
} pc;
ROWS(o, 3)
ROWS_OUT2(codes, 4)

// amax_of[2*head+half][lane/4][lane%4]: the largest magnitude in a unit, as bits: they
// order like the numbers. A half is 32 units, of which 16 are a block.
shared uvec4 amax_of[2u * HEADS * LANES / 4u];

uint amax8(vec4 a, vec4 b) {
    uvec4 m = max(floatBitsToUint(a) & 0x7FFFFFFFu, floatBitsToUint(b) & 0x7FFFFFFFu);
    return max(max(m.x, m.y), max(m.z, m.w));
}

// block_byte: the scale of block c of the local head.
uint block_byte(uint head, uint c) {
    const uint i = (2u * head + c / 2u) * (LANES / 4u) + (c & 1u) * 4u;
    const uvec4 m = max(max(amax_of[i], amax_of[i + 1u]), max(amax_of[i + 2u], amax_of[i + 3u]));
    return ue8m0_encode(uintBitsToFloat(max(max(m.x, m.y), max(m.z, m.w))), UE8M0_EPS_OUT, UE8M0_INV_E4M3);
}

// codes4: the product is exact unless it underflows, far below the smallest code; the
// sign comes from the input, so that flushing cannot lose it.
uint codes4(vec4 x, float inverse) {
    const uvec4 u = floatBitsToUint(x);
    const vec4 y = uintBitsToFloat(u & 0x7FFFFFFFu) * inverse;
    uint w = 0u;
    for (uint j = 0u; j < 4u; j++)
        w |= e4m3_encode_bits((floatBitsToUint(y[j]) & 0x7FFFFFFFu) | (u[j] & 0x80000000u)) << (8u * j);
    return w;
}

vec4 low(uvec4 w) { return vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)); }
vec4 high(uvec4 w) { return vec4(bf16_unpack2(w.z), bf16_unpack2(w.w)); }

void main() {
    const uint me = gl_LocalInvocationID.x, lane = me % LANES, local = me / LANES;
    const uint t = gl_WorkGroupID.y, head = gl_WorkGroupID.x * HEADS + local;
    const uint group = head / P, j = head % P;
    const bool live = head < pc.heads, real = live && t < pc.tokens;

    vec4 x[4] = vec4[4](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0)); // units lane and lane + 32
    if (real) {
        const uint unit = (t * pc.width + head) * UNITS + lane;
        const uvec4 a = o_load(unit), b = o_load(unit + LANES);
        x = vec4[4](low(a), high(a), low(b), high(b));
        if (lane >= LANES - 8u) {
            const uint row = uint(clamp(positions[t], 0, int(pc.table_rows) - 1)), pair = (lane + 8u - LANES) * 4u;
            const vec4 near = table_cos_sin2(row, pair, false), far = table_cos_sin2(row, pair + 2u, false);
            x[2] = vec4(rope_unrotate(x[2].xy, near.xy), rope_unrotate(x[2].zw, near.zw));
            x[3] = vec4(rope_unrotate(x[3].xy, far.xy), rope_unrotate(x[3].zw, far.zw));
        }
    }
    const uint at = 2u * local * (LANES / 4u) + lane / 4u;
    amax_of[at][lane % 4u] = amax8(x[0], x[1]);
    amax_of[at + LANES / 4u][lane % 4u] = amax8(x[2], x[3]);
    barrier();
    if (!live) return;

    const uint c = lane / 16u; // block of the first unit; the second one's is c + 2
    const uint first = block_byte(local, c), second = block_byte(local, c + 2u);
    if (real) {
        const float f = ue8m0_inverse(first), s = ue8m0_inverse(second);
        const uint unit = ((group * pc.tokens + t) * P + j) * UNITS + lane;
        codes_store2(unit, uvec2(codes4(x[0], f), codes4(x[1], f)));
        codes_store2(unit + LANES, uvec2(codes4(x[2], s), codes4(x[3], s)));
    }
    if (PACKED != 0u) {
        if (lane == 0u) {
            const uint word = first | (block_byte(local, 1u) << 8) | (second << 16) | (block_byte(local, 3u) << 24);
            scales[head * pc.padded + t] = real ? word : 0u; // (g*P + j) is the head
        }
    } else if (lane % 16u == 0u) {
        const uint row = head * 4u + c;
        scales[row * pc.padded + t] = real ? first << 23 : 0u;
        scales[(row + 2u) * pc.padded + t] = real ? second << 23 : 0u;
    }
}
