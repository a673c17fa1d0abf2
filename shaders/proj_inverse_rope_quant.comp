// The attention's output for an FP8 product: for token t at position p, head h = g*P + j, group g,
// x = o[t,h] in binary32 with x[448..511] turned back at p, not rounded; for block c = 0..3 of 128
//   sb = byte of 2^ceil(log2(max(amax, 1e-10)/448)),  codes[g,t,j*512+d] = e4m3(x[d] * 2^(127-sb))
//   scales[g,j*4+c,t] = 2^(sb-127), f32 [G,P*4,Ta]; PACKED byte c of [g,j,t] = sb, u32 [G,P,Ta]
// Shared memory: 576 B.
// Features: none; with KV_DA bufferDeviceAddress, shaderInt64.
// Bindings: 0 positions [T] i32, 1 table [rows,64] f32 (lib/rope.glsl), 2 scales, 3 o [T,width,512]
//   bf16, width >= H, 4 codes [G,T,P*512] u8; KV_DA builds reach all by address.
// Workgroup: 4 heads (x) of token y < Ta, 32 invocations each with 16 neighbouring numbers.
// Constants: 0 P, heads of a group, 1 PACKED.
// Ta is T rounded up to a multiple of 4; scales of t >= T are 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/rows.glsl"
#include "lib/tensors.glsl"
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

layout(push_constant) uniform Push {
    KV_ADDR positions_addr;
    KV_ADDR table_addr;
    KV_ADDR scales_addr;
    KV_ADDR o_addr;
    KV_ADDR codes_addr;
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
ROWS(o, 3)
ROWS_OUT(codes, 4)

vec4 low(uvec4 w) { return vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)); }
vec4 high(uvec4 w) { return vec4(bf16_unpack2(w.z), bf16_unpack2(w.w)); }

uint max4(uvec4 m) { return max(max(m.x, m.y), max(m.z, m.w)); }

shared uvec4 amax_of[HEADS * LANES / 4u]; // of every invocation, as bits: they order like the numbers
shared uint bytes_of[HEADS * 4u];

// block_amax: the largest of 8 invocations, each with its own.
uint block_amax(uint amax) {
    amax_of[gl_LocalInvocationID.x / 4u][gl_LocalInvocationID.x % 4u] = amax;
    barrier();
    const uint i = gl_LocalInvocationID.x / 8u * 2u;
    return max4(max(amax_of[i], amax_of[i + 1u]));
}

// head_bytes: of the blocks of a head in a word.
uint head_bytes(uint block, uint sb) {
    const uint first = gl_LocalInvocationID.x / LANES * 4u;
    bytes_of[first + block] = sb;
    barrier();
    return bytes_of[first] | (bytes_of[first + 1u] << 8) | (bytes_of[first + 2u] << 16) | (bytes_of[first + 3u] << 24);
}

uint scale_byte(uint amax) { return ue8m0_encode(uintBitsToFloat(amax), UE8M0_EPS_OUT, UE8M0_INV_E4M3); }

// Numbers are kept as bits without sign, and the signs of four in a word as codes have them: both
// come from bf16 words with fewer operations than from f32 ones.
uvec4 magnitudes(uvec2 w) { return uvec4((w.x << 16) & 0x7FFF0000u, w.x & 0x7FFF0000u, (w.y << 16) & 0x7FFF0000u, w.y & 0x7FFF0000u); }
uint signs(uvec2 w) {
    return (((w.x >> 8) & 0xFFu) | ((w.x >> 16) & 0xFF00u) | ((w.y << 8) & 0xFF0000u) | (w.y & 0xFF000000u)) & 0x80808080u;
}
uint signs_wide(uvec4 v) {
    return ((v.x >> 24) | ((v.y >> 16) & 0xFF00u) | ((v.z >> 8) & 0xFF0000u) | (v.w & 0xFF000000u)) & 0x80808080u;
}

// codes4: four numbers of a block. Where all of it are finite, its scale keeps them at most 448 but
// for the rounding of 1/448. A product is exact unless it underflows, far below the smallest code.
uint codes4(uvec4 m, uint sign, float inverse, bool usual) {
    if (usual) {
        precise vec4 y = uintBitsToFloat(m) * (inverse * 128.0);
        return e4m3_codes4(y) | sign;
    }
    uint w = 0u;
    for (uint j = 0u; j < 4u; j++) {
        const uint y = floatBitsToUint(uintBitsToFloat(m[j]) * inverse) & 0x7FFFFFFFu;
        w |= e4m3_encode_bits(y | ((sign << (24u - 8u * j)) & 0x80000000u)) << (8u * j);
    }
    return w;
}

void main() {
    const uint me = gl_LocalInvocationID.x, lane = me % LANES, local = me / LANES;
    const uint t = gl_WorkGroupID.y, head = gl_WorkGroupID.x * HEADS + local;
    const uint group = head / P, j = head % P;
    const bool live = head < pc.heads, real = live && t < pc.tokens;

    uvec4 mag[4] = uvec4[4](uvec4(0u), uvec4(0u), uvec4(0u), uvec4(0u));
    uint sign[4] = uint[4](0u, 0u, 0u, 0u);
    if (real) {
        const uint unit = (t * pc.width + head) * UNITS + 2u * lane;
        const uvec4 a = o_load(unit), b = o_load(unit + 1u);
        mag = uvec4[4](magnitudes(a.xy), magnitudes(a.zw), magnitudes(b.xy), magnitudes(b.zw));
        sign = uint[4](signs(a.xy), signs(a.zw), signs(b.xy), signs(b.zw));
        if (lane >= LANES - 4u) {
            const uint row = uint(clamp(positions_at(t), 0, int(pc.table_rows) - 1)), pair = (lane + 4u - LANES) * 8u;
            const vec4 x[4] = vec4[4](low(a), high(a), low(b), high(b));
            vec4 turn[4];
            table_cos_sin4(row, pair, false, turn[0], turn[1]);
            table_cos_sin4(row, pair + 4u, false, turn[2], turn[3]);
            [[unroll]] for (uint k = 0u; k < 4u; k++) {
                const uvec4 y = floatBitsToUint(vec4(rope_unrotate(x[k].xy, turn[k].xy), rope_unrotate(x[k].zw, turn[k].zw)));
                mag[k] = y & 0x7FFFFFFFu;
                sign[k] = signs_wide(y);
            }
        }
    }
    const uint c = lane / 8u, amax = block_amax(max4(max(max(mag[0], mag[1]), max(mag[2], mag[3])))), sb = scale_byte(amax);
    uint word = 0u;
    if (PACKED != 0u) word = head_bytes(c, sb);
    if (!live) return;

    if (real) {
        const float inverse = ue8m0_inverse(sb);
        const bool usual = amax < 0x7F800000u;
        const uint unit = ((group * pc.tokens + t) * P + j) * (UNITS / 2u) + lane;
        codes_store(unit, uvec4(codes4(mag[0], sign[0], inverse, usual), codes4(mag[1], sign[1], inverse, usual),
                                codes4(mag[2], sign[2], inverse, usual), codes4(mag[3], sign[3], inverse, usual)));
    }
    if (PACKED != 0u) {
        if (lane == 0u) scales_put(head * pc.padded + t, real ? word : 0u); // (g*P + j) is the head
    } else if (lane % 8u == 0u) {
        scales_put((head * 4u + c) * pc.padded + t, real ? sb << 23 : 0u);
    }
}
