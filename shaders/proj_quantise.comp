// Activations for products with numbers of 8 or 4 bits. x is bf16 [T,G,K].
//   FP8: of block b of 128 numbers of group g of token t
//     sb = byte of 2^ceil(log2(max(amax, 1e-10)/448)),  codes[g,t,k] = e4m3(x * 2^(127-sb))
//     scales[g,b,t] = 2^(sb-127), f32 [G,K/128,Ta]
//     packed: byte b%4 of scales[g,b/4,t] = sb, u32 [G,K/512,Ta]
//   MXFP8: packed FP8 of blocks of 32 numbers, u32 [G,K/128,Ta], with 1e-4 for 1e-10
//   NVFP4: of block b of 16 numbers
//     s = e4m3(inverse * (amax * f32(1/6)))
//     codes[g,t,k] = e2m1(f32(x * inverse) / s), 0 where s is
//     scales[g,t,b] = s, u8 [G,T,K/16]
// Shared memory: 512 B.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64.
// Bindings: 0 scales, 1 x, 2 codes: [G,T,K] u8, of NVFP4 [G,T,K/2] with two codes a byte, the even
//   one low; with ADDRESSED all by address.
// Workgroup: 2048 neighbouring numbers (x) of token y, below Ta with FP8. An invocation has 16.
// Constants: 0 FORMAT: 1 FP8, 2 the same with packed scales, 3 NVFP4, 4 MXFP8, as ACT in
//   lib/formats.glsl.
// Ta is T rounded up to a multiple of 4; scales of t >= T are 0. K is a multiple of 128, of 512, of
// 64 and of 128.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/rows.glsl"
#include "lib/tensors.glsl"
#include "lib/quantise.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint FORMAT = 1u;
const uint FP8 = 1u, NVFP4 = 3u, MXFP8 = 4u;

layout(push_constant) uniform Push {
    ADDRESS scales_addr;
    ADDRESS x_addr;
    ADDRESS codes_addr;
    uint tokens;   // T
    uint padded;   // Ta
    uint groups;   // G
    uint k;        // K
    float inverse; // NVFP4: 1/input_scale
} pc;
TENSOR_OUT(uint, scales, 0)
ROWS(x, 1)
TENSOR_OUT(uvec2, codes, 2)

const uint FP8_LANES = FORMAT == MXFP8 ? 2u : 8u; // invocations of a block of 32 or 128 numbers
const uint BF16_INFINITY = 0x7F80u;

shared uint lane_s[128];

// block_amax: the largest of FP8_LANES invocations, each with its own, as bf16 bits.
uint block_amax(uint amax) {
    const uint me = gl_LocalInvocationID.x, first = me / FP8_LANES * FP8_LANES;
    lane_s[me] = amax;
    barrier();
    uint most = 0u;
    [[unroll]] for (uint i = 0u; i < FP8_LANES; i++) most = max(most, lane_s[first + i]);
    barrier();
    return most;
}

// bytes_of_four: a byte of each of four invocations that lie `apart` from each other, of which this
// is the first.
uint bytes_of_four(uint value, uint apart) {
    const uint me = gl_LocalInvocationID.x;
    lane_s[me] = value;
    barrier();
    uint word = 0u;
    [[unroll]] for (uint i = 0u; i < 4u; i++) word |= lane_s[min(me + i * apart, 127u)] << (8u * i);
    return word;
}

// nvfp4_code: that of a bf16 number. Its magnitude times inverse is compared with s times every
// number halfway between two codes, which is exact, where a device's division is not.
uint nvfp4_code(uint x, float s) {
    precise float v = uintBitsToFloat((x & 0x7FFFu) << 16) * pc.inverse;
    uint code = uint(v > 0.25 * s) + uint(v >= 0.75 * s) + uint(v > 1.25 * s) + uint(v >= 1.75 * s) + uint(v > 2.5 * s)
        + uint(v >= 3.5 * s) + uint(v > 5.0 * s);
    return (s == 0.0 ? 0u : code) | ((x >> 12) & 8u);
}

// nvfp4_codes: of the eight numbers of a quad.
uint nvfp4_codes(uvec4 q, float s) {
    uint word = 0u;
    for (uint i = 0u; i < 4u; i++) word |= (nvfp4_code(q[i] & 0xFFFFu, s) | (nvfp4_code(q[i] >> 16, s) << 4)) << (8u * i);
    return word;
}

void main() {
    const uint per_group = pc.k / 16u, unit = gl_WorkGroupID.x * 128u + gl_LocalInvocationID.x, t = gl_WorkGroupID.y;
    const bool live = unit < pc.groups * per_group, real = live && t < pc.tokens;
    const uint group = unit / per_group, i = unit % per_group, row = group * pc.tokens + t;
    uvec4 a = uvec4(0u), b = uvec4(0u);
    if (real) {
        a = x_load((t * pc.groups * per_group + unit) * 2u);
        b = x_load((t * pc.groups * per_group + unit) * 2u + 1u);
    }
    uint amax = max(max(quantise_amax(a.xy), quantise_amax(a.zw)), max(quantise_amax(b.xy), quantise_amax(b.zw)));
    if (FORMAT == NVFP4) {
        precise float largest = pc.inverse * (uintBitsToFloat(amax << 16) * UE8M0_INV_E2M1);
        const uint code = amax > BF16_INFINITY ? 0x7Fu : e4m3_encode(largest);
        const uint word = bytes_of_four(code, 1u);
        if (!real) return;
        const float s = e4m3_decode(code);
        // With a NaN in it the block is NaN; its codes are what E2M1 has for one.
        codes_put(row * per_group + i, amax > BF16_INFINITY ? uvec2(0x77777777u) : uvec2(nvfp4_codes(a, s), nvfp4_codes(b, s)));
        if (i % 4u == 0u) scales_put((row * per_group + i) / 4u, word);
        return;
    }
    amax = block_amax(amax);
    const float least = FORMAT == MXFP8 ? UE8M0_EPS_KV : UE8M0_EPS_OUT;
    const uint sb = amax > BF16_INFINITY ? 255u : ue8m0_encode(uintBitsToFloat(amax << 16), least, UE8M0_INV_E4M3);
    if (FORMAT != FP8) {
        const uint word = bytes_of_four(sb, FP8_LANES);
        const uint four = i / (4u * FP8_LANES);
        if (live && i % (4u * FP8_LANES) == 0u) scales_put((group * (pc.k / (64u * FP8_LANES)) + four) * pc.padded + t, real ? word : 0u);
    } else if (live && i % FP8_LANES == 0u) {
        scales_put((group * (pc.k / 128u) + i / FP8_LANES) * pc.padded + t, real ? sb << 23 : 0u);
    }
    if (!real) return;
    const float inverse = ue8m0_inverse(sb);
    const bool usual = amax < BF16_INFINITY;
    codes_put((row * per_group + i) * 2u, quantise8(a, inverse, usual));
    codes_put((row * per_group + i) * 2u + 1u, quantise8(b, inverse, usual));
}
