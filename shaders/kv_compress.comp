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
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/kv_compress.glsl"
