#version 460
// Reads and does nothing else: the least time of a launch that needs these bytes.
//   total += sum of all words of src, if it is asked for
// Bindings, of the build without _da: 0 src [count] uvec4   1 total [1] u32
// Workgroup: every gl_NumWorkGroups.x-th block of lanes * LOADS pieces of 16 bytes. An invocation
//   asks for LOADS of them before it waits for one.
// Constants: 0 invocations, lanes; 1 LOADS.
// Shared memory: none.  Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64.
// Without keep, total is written only if the sum has one unlikely value, so that a compiler cannot
// leave out the loads.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/tensors.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint LOADS = 4;
layout(push_constant) uniform Push {
    ADDRESS src_addr;
    ADDRESS total_addr;
    uint count; // pieces
    uint keep;  // 1 if total is wanted
} pc;
TENSOR(uvec4, src, 0)
#ifdef ADDRESSED
layout(buffer_reference, std430, buffer_reference_align = 4) buffer TotalAt { uint v; };
void add_total(uint x) { atomicAdd(TotalAt(pc.total_addr).v, x); }
#else
layout(std430, set = 0, binding = 1) buffer Total { uint v; } total;
void add_total(uint x) { atomicAdd(total.v, x); }
#endif

void main() {
    const uint lanes = gl_WorkGroupSize.x, block = lanes * LOADS, lane = gl_LocalInvocationID.x;
    uvec4 sum = uvec4(0u);
    for (uint at = gl_WorkGroupID.x * block; at < pc.count; at += gl_NumWorkGroups.x * block) {
        uvec4 v[LOADS];
        if (at + block <= pc.count) {
            [[unroll]] for (uint i = 0u; i < LOADS; i++) v[i] = src_at(at + i * lanes + lane);
        } else {
            [[unroll]] for (uint i = 0u; i < LOADS; i++) {
                const uint j = at + i * lanes + lane;
                v[i] = j < pc.count ? src_at(j) : uvec4(0u);
            }
        }
        [[unroll]] for (uint i = 0u; i < LOADS; i++) sum += v[i];
    }
    const uint all = sum.x + sum.y + sum.z + sum.w;
    if (pc.keep != 0u || all == 0x9E3779B9u) add_total(all);
}
