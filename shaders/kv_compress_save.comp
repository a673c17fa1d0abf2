#version 460
// Save and compress: each token's state is stored as kv_save_state.comp has it, and those that end a group are compressed as
//   kv_compress.comp has it. Of a window's rows those that are tokens of this launch come from kv_score, with ape, and only the others from
//   the pool of states: no workgroup waits for what another one stores. A request's tokens stand side by side, in the order of positions.
// Bindings:  0..6 those of kv_compress.comp   7 ape [RATIO, C] f32
//            8 kv_score [N, 2C] f32   9 state [pages, stride] u8   10 pool [pages, stride] u8 (not in _da builds)
// Workgroup: token gl_WorkGroupID.x; y = 0 its entry, y = 1 its state. Constants, shared memory, features: those of kv_compress.comp.
#extension GL_GOOGLE_include_directive : require
#define KV_SAVE
#include "lib/kv_compress.glsl"
