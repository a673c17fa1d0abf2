#version 460
// Compress: for token i at position p that ends a group, (p+1)%RATIO == 0, with a window of N = WINDOW tokens,
//   row j = 0..N-1 is the state of position p-N+1+j, found by the request's row of table; channel c of it is c for
//   j < RATIO, else DIM+c;  rows of positions < 0 or without a page are absent
//   v[c] = sum_j kv_j[c] * exp(score_j[c] - m) / sum_j exp(score_j[c] - m),  m = max_j score_j[c]
//   n[c] = v[c] * (sum_c v[c]^2 / DIM + eps)^-0.5 * norm[c];  n[DIM-64..] rotated for position p+1-RATIO
//   x = bf16(n), Hadamard-rotated if HADAMARD; quantised into slot slots[i]: FORMAT 0 a K row (kv_page.glsl),
//   1 or 2 an indexer key (index_page.glsl), scales as in ue8m0.glsl over blocks of 64 (not the last), 128, 32
// Shared memory: 24*invocations (48 if GROUPS is 1, 4*DIM + 1536 for a short window) + 8*DIM/4 + 4*WINDOW + 864 bytes.  Features: none; _da: bufferDeviceAddress, shaderInt64.
// Bindings:  0 positions [T] i32   1 token_to_req [T] i32   2 state_slots [T] i64   3 slots [T] i64   4 table [R, W] i32
//            5 norm [DIM] f32 or bf16   6 cos_sin [rows, 64] f32, row k of position k*ROPE_STEP
//            7 state [pages, stride] u8   8 pool [pages, stride] u8 (both not in _da builds)
// Workgroup: pc.each tokens, one at a time; DIM/4 lanes of 4 channels, times GROUPS that share the rows of a long window, or four that share
// the channels of a short one.
// Constants: 0 invocations, 1 PAGE of pool, 2 STATE_PAGE, 3 RATIO, 4 DIM, 5 FORMAT, 6 HADAMARD, 7 ROPE_STEP, 8 CHUNK.
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_compress.glsl"
