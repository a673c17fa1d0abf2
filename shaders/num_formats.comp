#version 460
// Number formats, one function of lib/*.glsl per dispatch: dst[i] = f(src[i]), i < count.
//
// Bindings:  0 src [count] u32 (f32 bits or codes)
//            1 dst [count] u32, or [count, 2] / [count, 4] by mode
// mode:      0 bf16_encode  1 bf16_decode  2 bf16_pack2 (src[2i], src[2i+1])
//            3 bf16_unpack2 -> [count, 2]
//            4 e4m3_encode  5 e4m3_decode  6 e4m3_decode4 -> [count, 4]
//            7 ue8m0_encode with eps and inv_max  8 ue8m0_scale  9 ue8m0_inverse
//            10 e2m1_encode 11 e2m1_decode 12 bf16_pack2_exact (src[2i], src[2i+1])
// Workgroup: 64 elements, one per invocation. Shared memory: 0. Features: none.
// It exists for tests only: every code, both ways, is compared with the Go definition.
#extension GL_GOOGLE_include_directive : require
#include "lib/bf16.glsl"
#include "lib/e4m3.glsl"
#include "lib/ue8m0.glsl"
#include "lib/e2m1.glsl"

layout(local_size_x = 64) in;

layout(std430, set = 0, binding = 0) readonly buffer Src { uint src[]; };
layout(std430, set = 0, binding = 1) writeonly buffer Dst { uint dst[]; };

layout(push_constant) uniform Push {
    uint count;
    uint mode;
    uint eps;     // f32 bits
    uint inv_max; // f32 bits
} pc;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= pc.count) return;
    switch (pc.mode) {
    case 0u: dst[i] = bf16_encode(uintBitsToFloat(src[i])); break;
    case 1u: dst[i] = floatBitsToUint(bf16_decode(src[i])); break;
    case 2u: dst[i] = bf16_pack2(uintBitsToFloat(src[2u * i]), uintBitsToFloat(src[2u * i + 1u])); break;
    case 3u: {
        vec2 v = bf16_unpack2(src[i]);
        dst[2u * i] = floatBitsToUint(v.x);
        dst[2u * i + 1u] = floatBitsToUint(v.y);
        break;
    }
    case 4u: dst[i] = e4m3_encode(uintBitsToFloat(src[i])); break;
    case 5u: dst[i] = floatBitsToUint(e4m3_decode(src[i])); break;
    case 6u: {
        vec4 v = e4m3_decode4(src[i]);
        for (uint j = 0u; j < 4u; j++) dst[4u * i + j] = floatBitsToUint(v[j]);
        break;
    }
    case 7u: dst[i] = ue8m0_encode(uintBitsToFloat(src[i]), uintBitsToFloat(pc.eps), uintBitsToFloat(pc.inv_max)); break;
    case 8u: dst[i] = floatBitsToUint(ue8m0_scale(src[i])); break;
    case 9u: dst[i] = floatBitsToUint(ue8m0_inverse(src[i])); break;
    case 10u: dst[i] = e2m1_encode(uintBitsToFloat(src[i])); break;
    case 11u: dst[i] = floatBitsToUint(e2m1_decode(src[i])); break;
    case 12u: dst[i] = bf16_pack2_exact(uintBitsToFloat(src[2u * i]), uintBitsToFloat(src[2u * i + 1u])); break;
    }
}
