#version 460
// Streaming copy, for the device's copy bandwidth: dst[i] = src[i] + step.
//   0 src [words/4] uvec4    1 dst [words/4] uvec4
// One invocation moves 16 bytes at a time and strides over the grid, so any grid
// covers any size. No shared memory, no features beyond Vulkan 1.2. The step lets
// a test tell each launch of a chain from the others.
layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) restrict readonly buffer Src { uvec4 src[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Dst { uvec4 dst[]; };
layout(push_constant) uniform Push { uint count; uint step; } pc; // count: of 16-byte pieces

void main() {
    uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < pc.count; i += stride) dst[i] = src[i] + pc.step;
}
