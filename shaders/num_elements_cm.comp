// Elements of the cooperative-matrix kernels, one function of lib/cm_element.glsl per dispatch,
// i < count:
//   mode 0: dst[2i], dst[2i+1] = cm_e4m3x4(src[2i], scale src[2i+1])   four codes times a scale byte
//   mode 1: dst[i] = cm_from_bf16(src[i])                              a pair of bf16
//   mode 2: dst[2i], dst[2i+1] = cm_pack(src[4i .. 4i+3] as f32)       four weights
// bindings: 0 src u32; 1 dst u32, two elements a word.
// Workgroup: 64 elements, one per invocation. Shared memory: 0.
// Features: shaderFloat16 (both builds; no matrix is used).
// For tests only: every code with every scale, and every bf16, is compared with the Go definition.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm_element.glsl"

layout(local_size_x = 64) in;

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
