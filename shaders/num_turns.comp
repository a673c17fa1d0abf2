#version 460
// Stages of one launch that wait for each other, by lib/turns.glsl: out[s][i] = i + s + sum_j out[s-1][j], modulo 2^32.
//
// By address: turns [1 + stages] u32, 0 before and after   out [stages, width*64] u32
// A workgroup owns 64 numbers of a stage; width of them a stage, in a grid of any shape. Shared memory: 256 + 8 B.
// Features: bufferDeviceAddress, shaderInt64.
// It exists for tests only.
#extension GL_GOOGLE_include_directive : require
#define KV_DA
#include "lib/kv_page.glsl"

layout(local_size_x = 64) in;

layout(push_constant) uniform Push {
    KV_ADDR turns_addr;
    KV_ADDR out_addr;
    uint stages;
    uint width;
} pc;

#include "lib/turns.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Numbers { uint v[]; };

shared uint sum_s[64];

void main() {
    const uint tid = gl_LocalInvocationIndex, turn = turn_take(), stage = turn / pc.width, of = pc.width * 64u;
    const uint i = turn % pc.width * 64u + tid;
    Numbers numbers = Numbers(pc.out_addr);
    uint sum = 0u;
    if (stage > 0u) {
        turn_wait(stage - 1u, pc.width);
        for (uint j = tid; j < of; j += 64u) sum += numbers.v[(stage - 1u) * of + j];
    }
    sum_s[tid] = sum;
    barrier();
    sum = i + stage;
    for (uint j = 0u; j < 64u; j++) sum += sum_s[j];
    numbers.v[stage * of + i] = sum;
    if (stage < pc.stages - 1u) turn_done(stage);
    else turn_end(stage, pc.width, pc.stages);
}
