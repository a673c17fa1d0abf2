// Touch: reads word i*STEP of a pool, i = 0, 1, .., so that the device has translated its addresses
//   when rows are gathered from it. What the word is does not matter.
// Bindings:  0 pool [words] u32
//            1 sink [1] u32, written now and then so that the reads have a purpose
// Workgroup: a word per invocation.  Constants: 0 invocations, 1 STEP words.  Shared memory: 0.
// Features:  none.
#version 460
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint STEP = 524288;

layout(std430, set = 0, binding = 0) readonly buffer Pool { uint v[]; } pool;
layout(std430, set = 0, binding = 1) writeonly buffer Sink { uint v[]; } sink;

layout(push_constant) uniform Push {
    uint words; // of the pool
} pc;

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i >= (pc.words + STEP - 1u) / STEP) return;
    const uint x = pool.v[i * STEP];
    if (x == 0x9E3779B9u) sink.v[0] = x;
}
