// Compress: for token i at position p that ends a group of RATIO, over the N = WINDOW rows j of its
// window (the states of positions p-N+1+j, found through the request's row of table):
//   v[c] = sum_j kv_j[c] * exp(score_j[c] - m) / sum_j exp(score_j[c] - m),  m = max_j score_j[c]
//   n[c] = v[c] * (sum_c v[c]^2 / DIM + eps)^-0.5 * norm[c],  n[DIM-64..] turned for p+1-RATIO
//   slot slots[i] = quantise(bf16(n)): FORMAT 0 a K row (kv_page.glsl), 1 or 2 an indexer key
//   (index_page.glsl), rotated by Hadamard's matrix with HADAMARD
// With OVERLAP, N is 2*RATIO and the newer RATIO rows have channel c at DIM+c; else N is RATIO.
// Rows of positions < 0 or without a page are absent. A scale's block is 64 (K), 128 (FP8) or 32
// (MXFP4) numbers.
// Bindings:  0 positions [T] i32   1 token_to_req [T] i32   2 state_slots [T] i64   3 slots [T] i64
//            4 table [R, W] i32   5 norm [DIM] f32 or bf16
//            6 cos_sin [rows, 64] f32, row k of position k*ROPE_STEP   7 state [pages, stride] u8
//            8 pool [pages, stride] u8   9 latent [T, DIM] bf16   (7 to 9 not in _da builds)
// Workgroup: pc.each tokens, one after the other, by GROUPS times DIM/4 invocations.
// Constants: 0 invocations, 1 PAGE of pool, 2 STATE_PAGE, 3 RATIO, 4 OVERLAP, 5 DIM, 6 FORMAT,
//   7 HADAMARD, 8 ROPE_STEP, 9 CHUNK, 10 MODE: above 0 as lib/kv_latent.glsl has it, 11 RECORD of
//   a K row (lib/kv_record.glsl).
// Shared memory: 2*DIM + 4*WINDOW + 864 bytes, of indexer keys 512 for each further group; and 48
//   for one group, 4*DIM for four that share a short window, else 24*invocations.
// Features:  none; _da: bufferDeviceAddress, shaderInt64.
// With KV_SAVE it stores each token's state, too, as kv_save_state.comp does, in one launch. Rows
// of a window that are tokens of this launch come from kv_score and ape, the others from the pool
// of states, so that no workgroup waits for another. A request's tokens stand side by side, in the
// order of their positions.
// Bindings:  0..6 as above   7 ape [RATIO, C] f32   8 kv_score [N, 2C] f32   9 state
//            10 pool   11 latent   (8..11 not in _da builds). With MODE 2 kv_score is [N, DIM], and
//            1, 2, 4, 7 and 9 are not read
// Workgroup: token gl_WorkGroupID.x: y = 0 its entry, y = 1 its state.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_compress.glsl"
