// Save states: for token i at position p = positions[i] >= 0 with slot s = state_slots[i] >= 0 of
// the pool, C channels of a token,
//   state[s].kv[c] = kv_score[i, c],  state[s].score[c] = kv_score[i, C + c] + ape[p%RATIO, c]
// Bindings:  of kv_compress.comp 0 positions [T] i32   2 state_slots [T] i64   7 ape [RATIO, C] f32
//            8 kv_score [N, 2C] f32   9 state [pages, stride] u8   (8 and 9 not with ADDRESSED)
// Workgroup: a token; x strides over tokens.
// Constants: 0 invocations, 2 STATE_PAGE, 3 RATIO, 4 OVERLAP, 5 DIM.  Shared memory: 0.
// Features:  none; with ADDRESSED bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define SAVE
#include "lib/kv_states.glsl"

void main() {
    for (uint i = gl_WorkGroupID.x; i < pc.tokens; i += gl_NumWorkGroups.x) save(i);
}
