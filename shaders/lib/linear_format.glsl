// The formats of a linear layer's numbers. Rows of x and w are whole quads of 16 bytes.
// Constants: 0 FORMAT of weights, 1 ACT, format of activations.
#ifndef LIB_LINEAR_FORMAT_GLSL
#define LIB_LINEAR_FORMAT_GLSL
#include "kv_page.glsl"
#include "bf16.glsl"
#include "e4m3.glsl"
#include "e2m1.glsl"
#include "ue8m0.glsl"

layout(constant_id = 0) const uint FORMAT = 1u;
layout(constant_id = 1) const uint ACT = 0u;

const uint WEIGHT_BF16 = 1u, WEIGHT_FP8 = 2u, WEIGHT_FP8_UE8M0 = 3u, WEIGHT_NVFP4 = 4u, WEIGHT_FP8_ROWS = 5u,
           WEIGHT_FP8_UE8M0_32 = 6u;
const uint ACT_BF16 = 0u, ACT_FP8 = 1u, ACT_FP8_PACKED = 2u, ACT_NVFP4 = 3u, ACT_MXFP8 = 4u;
const bool SMALL_BLOCKS = FORMAT == WEIGHT_FP8_UE8M0_32; // FP8: rows of a tile and numbers of a step have several scales
const bool FP8_WEIGHT = FORMAT == WEIGHT_FP8 || FORMAT == WEIGHT_FP8_UE8M0 || FORMAT == WEIGHT_FP8_ROWS || SMALL_BLOCKS;
const bool ROW_SCALES = FORMAT == WEIGHT_NVFP4 || FORMAT == WEIGHT_FP8_ROWS; // sums are multiplied by row_scale
const uint FP8_ONE = 0x3F800000u; // f32 bits of 1
const uint SCALE_BLOCK = SMALL_BLOCKS ? 32u : 128u; // numbers of a row, and rows, that share an FP8 scale
const uint X_BLOCK = ACT == ACT_MXFP8 ? 32u : 128u; // numbers of a row of E4M3 activations that share a scale
const uint WEIGHT_QUAD = FORMAT == WEIGHT_BF16 ? 8u : FORMAT == WEIGHT_NVFP4 ? 32u : 16u; // weights of a quad
const uint ACT_QUAD = ACT == ACT_BF16 ? 8u : 16u;                                          // numbers of x of a quad

#endif
