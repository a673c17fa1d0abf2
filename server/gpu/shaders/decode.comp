// Decodes every code of a format, so that the host can see whether the device keeps subnormals:
//   dst[i] = code i
// Bindings: 0 src: chunks of the codes in order, 1 dst [codes] f32.
// Workgroup: one invocation. Shared memory: none.  Features: none.
// Constants: those of lib/weights.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 1) in;
#include "lib/weights.glsl"
layout(push_constant) uniform Push {
    uint chunks;
} pc;
layout(std430, set = 0, binding = 0) readonly buffer Src { uvec4 v[]; } src;
layout(std430, set = 0, binding = 1) writeonly buffer Dst { float v[]; } dst;

void main() {
    for (uint c = 0u; c < pc.chunks; c++) {
        [[unroll]] for (uint j = 0u; j < EIGHTS; j++) {
            float v[8];
            uvec4 q[QUADS];
            q[0] = src.v[c];
            decode8(q, j, v);
            [[unroll]] for (uint e = 0u; e < 8u; e++) dst.v[c * COLUMNS + j * 8u + e] = v[e] * UNSCALE;
        }
    }
}
