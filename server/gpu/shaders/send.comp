// Copies the rows that are wanted to where the host reads them:
//   dst[i] = src[i], i < step[1]*width
// Bindings: 0 step ([1] rows), 1 src [rows, width] f32, 2 dst [rows, width] f32.
// Workgroup: every stride-th 256 numbers.
// Shared memory: none.  Features: none.
#version 460
layout(local_size_x = 256) in;
layout(push_constant) uniform Push {
    uint width, stride; // numbers of a row, workgroups
} pc;
layout(std430, set = 0, binding = 0) readonly buffer Step { uint v[]; } step_;
layout(std430, set = 0, binding = 1) readonly buffer Src { float v[]; } src;
layout(std430, set = 0, binding = 2) writeonly buffer Dst { float v[]; } dst;

void main() {
    const uint end = step_.v[1] * pc.width;
    for (uint i = gl_GlobalInvocationID.x; i < end; i += pc.stride * 256u) dst.v[i] = src.v[i];
}
