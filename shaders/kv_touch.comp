// Touching a pool, so that a device has translated its addresses when rows are gathered from it: a word of every 2 MiB is read, and what it is does not matter.
// bindings: 0 pool [words] u32; 1 sink [1] u32, written now and then so that the reads have a purpose.
// One workgroup: 32 words. Shared memory: none. Features: none.
#version 460

layout(local_size_x = 32) in;

layout(std430, set = 0, binding = 0) readonly buffer Pool { uint v[]; } pool;
layout(std430, set = 0, binding = 1) writeonly buffer Sink { uint v[]; } sink;

layout(push_constant) uniform Push {
    uint words; // of the pool
} pc;

const uint STEP = 2097152u / 4u;

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i >= (pc.words + STEP - 1u) / STEP) return;
    const uint x = pool.v[i * STEP];
    if (x == 0x9E3779B9u) sink.v[0] = x;
}
