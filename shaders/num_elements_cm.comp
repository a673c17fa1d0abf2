// Elements of the cooperative-matrix kernels, one function of lib/cm_element.glsl per dispatch,
// i < count. For tests only: every code with every scale, and every bf16, is compared with the Go
// definition.
//   mode 0: dst[2i], dst[2i+1] = cm_e4m3x4(src[2i], scale src[2i+1])   four codes, a scale byte
//   mode 1: dst[i] = cm_from_bf16(src[i])                              a pair of bf16
//   mode 2: dst[2i], dst[2i+1] = cm_pack(src[4i .. 4i+3] as f32)       four weights
// bindings: 0 src u32; 1 dst u32, two elements a word.
// Workgroup: 64 elements, one per invocation. Shared memory: 0.
// Features: shaderFloat16 (both builds; no matrix is used).
//
// With SUBNORMALS, which a build with f16 defines: whether binary16's subnormals count, on a device
// that does not say. seen holds 0xFFFFFFFF before, which no compiler knows:
//   seen[1] a subnormal times 2^8, twice       0x18001800
//   seen[2] a product that is a subnormal      0x00200020
//   seen[3] an f32 number that becomes one     0x00200020
//   seen[4] one that becomes an f32 number     0x37000000
// bindings: 0 seen [5] u32. One invocation does it all.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm_element.glsl"

layout(local_size_x = 64) in;

#ifdef SUBNORMALS
layout(std430, set = 0, binding = 0) buffer Seen { uint seen[]; };

void main() {
    if (gl_LocalInvocationIndex != 0u) return;
    const uint ones = seen[0];
    const f16vec2 tiny = unpackFloat2x16(ones & 0x00800080u); // 2^-17
    seen[1] = packFloat2x16(tiny * unpackFloat2x16(ones & 0x5C005C00u));
    seen[2] = packFloat2x16(unpackFloat2x16(ones & 0x18001800u) * unpackFloat2x16(ones & 0x14001400u)); // 2^-9 * 2^-10
    seen[3] = packFloat2x16(f16vec2(vec2(uintBitsToFloat(ones & 0x36000000u))));                        // 2^-19
    seen[4] = floatBitsToUint(float(tiny.x));
}
#else
layout(std430, set = 0, binding = 0) readonly buffer Src { uint src[]; };
layout(std430, set = 0, binding = 1) writeonly buffer Dst { uint dst[]; };

layout(push_constant) uniform Push {
    uint count;
    uint mode;
} pc;

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i >= pc.count) return;
    if (pc.mode == 1u) {
        dst[i] = cm_from_bf16(src[i]);
        return;
    }
    const uvec2 w = pc.mode == 0u ? cm_e4m3x4(src[2u * i], cm_scale(src[2u * i + 1u]))
                                  : cm_pack(uintBitsToFloat(uvec4(src[4u * i], src[4u * i + 1u], src[4u * i + 2u], src[4u * i + 3u])));
    dst[2u * i] = w.x;
    dst[2u * i + 1u] = w.y;
}
#endif
