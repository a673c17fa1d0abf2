// Save and compress: stores each token's state as kv_save_state.comp does and compresses as
// kv_compress.comp does, in one launch. Rows of a window that are tokens of this launch come from
// kv_score and ape, the others from the pool of states, so that no workgroup waits for another. A
// request's tokens stand side by side, in the order of their positions.
// Bindings:  0..6 those of kv_compress.comp   7 ape [RATIO, C] f32   8 kv_score [N, 2C] f32
//            9 state [pages, stride] u8   10 pool [pages, stride] u8   11 latent [T, DIM] bf16
//            (8..11 not in _da builds). With MODE 2 kv_score is [N, DIM], and 1, 2, 4, 7 and 9 are
//            not read
// Workgroup: token gl_WorkGroupID.x: y = 0 its entry, y = 1 its state.
// Constants, shared memory, features: those of kv_compress.comp.
#version 460
#extension GL_GOOGLE_include_directive : require
#define KV_SAVE
#include "lib/kv_compress.glsl"
