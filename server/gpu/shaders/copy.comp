// A plain copy, for the bandwidth that others are compared with: dst[i] = src[i].
// Bindings: 0 src, 1 dst, [count] quads of 16 bytes.
// Workgroup: every stride-th 256 quads.
// Shared memory: none.  Features: none.
#version 460
layout(local_size_x = 256) in;
layout(push_constant) uniform Push {
    uint count, stride; // quads, workgroups
} pc;
layout(std430, set = 0, binding = 0) readonly buffer Src { uvec4 v[]; } src;
layout(std430, set = 0, binding = 1) writeonly buffer Dst { uvec4 v[]; } dst;

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < pc.count; i += pc.stride * 256u) dst.v[i] = src.v[i];
}
