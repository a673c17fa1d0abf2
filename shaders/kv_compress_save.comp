#version 460
// Save and compress: the states of all tokens are stored as kv_save_state.comp has it, then those that end a group are compressed as
//   kv_compress.comp has it; one workgroup does both, so that a barrier of its own is between them.
// Bindings:  0..6 those of kv_compress.comp   7 kv_score [N, 2C] f32   8 ape [RATIO, C] f32
//            9 state [pages, stride] u8   10 pool [pages, stride] u8 (both not in _da builds)
// Workgroup: all tokens. Constants, shared memory, features: those of kv_compress.comp.
#extension GL_GOOGLE_include_directive : require
#define KV_SAVE
#include "lib/kv_compress.glsl"
