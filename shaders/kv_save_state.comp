// Save states: for token i at position p = positions[i] >= 0 with slot s = slots[i] >= 0, C =
// CHANNELS:
//   state[s].kv[c] = kv_score[i, c],  state[s].score[c] = kv_score[i, C + c] + ape[p%RATIO, c]
// Slots beyond the pool are skipped, too.
// Bindings:  0 kv_score [N, 2C] f32, N >= T   1 ape [RATIO, C] f32   2 positions [T] i32
//            3 slots [T] i64   4 state [pages, stride] u8   (_da builds have no bindings)
// Workgroup: 512 numbers of a token, 4 per invocation; x strides over tokens, y parts of a token.
// Constants: 0 PAGE tokens per state page, 1 RATIO, 2 CHANNELS.  Shared memory: 0.
// Features:  none; _da: bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_page.glsl"
#include "lib/state_page.glsl"
#include "lib/tensors.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 4;
layout(constant_id = 1) const uint RATIO = 4;
layout(constant_id = 2) const uint CHANNELS = 1024;
const uint UNITS = CHANNELS / 4u;             // 16-byte units of a token's kv values, and of its scores
const bool PARTIAL = 2u * UNITS % 128u != 0u; // the last workgroup has units to spare

layout(push_constant) uniform Push {
    KV_ADDR kv_score_addr;
    KV_ADDR ape_addr;
    KV_ADDR positions_addr;
    KV_ADDR slots_addr;
    KV_ADDR state_addr;
    uint state_units; // 16-byte units per page
    uint state_pages;
    uint tokens;      // T
} pc;
TENSOR(uvec4, kv_score, 0)
TENSOR(uvec4, ape, 1)
TENSOR(int, positions, 2)
TENSOR(uvec2, slots, 3)
STATE_POOL_RW(state, 4)

void main() {
    uint unit = gl_WorkGroupID.y * 128u + gl_LocalInvocationID.x;
    for (uint i = gl_WorkGroupID.x; i < pc.tokens; i += gl_NumWorkGroups.x) {
        if (PARTIAL && unit >= 2u * UNITS) continue;
        const uint token = min(i, pc.tokens - 1u); // lavapipe loads uniform values even where no invocation goes on, by address unchecked
        uvec2 slot = slots_at(token);
        int p = positions_at(token);
        vec4 x = uintBitsToFloat(kv_score_at(token * (2u * UNITS) + unit));
        uint page = slot.x / PAGE;
        if (unit >= UNITS) x += uintBitsToFloat(ape_at((uint(p) % RATIO) * UNITS + unit - UNITS)); // under way before anything is decided
        if (slot.y != 0u || page >= pc.state_pages || p < 0) continue; // a negative slot has a high word
        state_store(page * pc.state_units + (slot.x % PAGE) * (2u * UNITS) + unit, x);
    }
}
