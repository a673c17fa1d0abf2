// The formats of a linear layer's numbers. Rows of x and w are whole quads of 16 bytes.
//
// Constants: 0 FORMAT of weights, what its row in package projection says, in bits (Format.word);
// 1 ACT, format of activations.
//
// A format of weights is that row and one file, format_NAME.glsl, which CODECS names. The file has
// a section for each way to decode, which linear_f32.glsl, linear_scales.glsl, linear_cm.glsl,
// linear_lanes.glsl and proj_linear_tokens8to16.comp include. An eight is eight neighbouring
// numbers: the words of a quad with them, from .x on. `beside` is what w_beside loads with a quad:
// its scales, of which `part` is one.
//
//   FORMAT_F32       NAME_UNIT: what numbers of NAME_f32 are to be multiplied by
//                    NAME_f32(eight, beside, a, b): as f32, without what NAME_factor gives
//                    NAME_factor(beside, part): with ROWWISE only, a scale
//   FORMAT_BESIDE    NAME_beside(row, k): with ROWWISE only, what belongs to the quad at k
//   FORMAT_ELEMENTS  NAME_ELEMENT_UNIT: what sums of elements are to be multiplied by
//                    NAME_elements(eight, beside, part, ref): eight elements of matrices, in order
//   FORMAT_PAIRS     NAME_PAIR_UNIT: what sums of pairs are to be multiplied by
//                    NAME_pairs(word, beside, part, relative, o): a word of a quad as pairs
//   FORMAT_HALVES    NAME_halves(eight, beside, part): eight halves, in the order of pairs
//   FORMAT_ORDER     NAME_order(v): eight 16-bit numbers of x in that order
#ifndef LIB_FORMATS_GLSL
#define LIB_FORMATS_GLSL
#include "kv_page.glsl"
#include "bf16.glsl"
#include "e4m3.glsl"
#include "e2m1.glsl"
#include "ue8m0.glsl"
#if defined(HALF_CODES) || defined(CM_A) || defined(DOT2)
#define F16_CONVERTS // package opkit runs builds that compute with halves where subnormals count
#endif
#include "f16.glsl"

layout(constant_id = 0) const uint FORMAT = 0u;
layout(constant_id = 1) const uint ACT = 0u;

const uint CODEC_BF16 = 0u, CODEC_FP8 = 1u, CODEC_NVFP4 = 2u, CODEC_Q8_0 = 3u, CODEC_Q4_K = 4u;
#define CODECS(each) each(BF16, bf16) each(FP8, fp8) each(NVFP4, nvfp4) each(Q8_0, q8_0) each(Q4_K, q4_k)
#define ROWWISE_CODECS(each) each(NVFP4, nvfp4) each(Q8_0, q8_0) each(Q4_K, q4_k)

const uint CODEC = FORMAT & 15u;
const uint WEIGHT_QUAD = 8u << (FORMAT >> 4 & 3u); // weights of a quad
const uint SCALE_BLOCK = 1u << (FORMAT >> 6 & 15u); // numbers of a row that share a scale
const bool STEP_SUMS = (FORMAT >> 10 & 1u) != 0u;   // rows of a tile share scales, too: a step's sums are multiplied by one
const bool ROWWISE = (FORMAT >> 11 & 1u) != 0u;     // scales are of one row each
const bool STORED_SCALES = (FORMAT >> 12 & 1u) != 0u; // with STEP_SUMS: there are scales; else each is 1
const bool F32_SCALES = (FORMAT >> 13 & 1u) != 0u;  // they are f32, not UE8M0
const bool ROW_SCALES = (FORMAT >> 14 & 1u) != 0u;  // sums are multiplied by row_scale
const bool OVERLAPS = (FORMAT >> 15 & 1u) != 0u;    // decoding takes as long as loading

const bool UNSCALED = !STEP_SUMS && !ROWWISE; // a number may be infinite or NaN: codes are finite
const bool SMALL_BLOCKS = STEP_SUMS && SCALE_BLOCK < 128u; // rows of a tile and numbers of a step have several scales
const uint ONE = 0x3F800000u;                              // f32 bits of 1

const uint ACT_BF16 = 0u, ACT_FP8 = 1u, ACT_FP8_PACKED = 2u, ACT_NVFP4 = 3u, ACT_MXFP8 = 4u;
const uint X_BLOCK = ACT == ACT_MXFP8 ? 32u : 128u; // numbers of a row of E4M3 activations that share a scale
const uint ACT_QUAD = ACT == ACT_BF16 ? 8u : 16u;   // numbers of x of a quad

// weight_eight: eight j of a quad.
uvec4 weight_eight(uvec4 q, uint j) {
    if (WEIGHT_QUAD == 8u) return q;
    if (WEIGHT_QUAD == 16u) return j == 0u ? q : q.zwzw;
    return uvec4(j < 2u ? (j == 0u ? q.x : q.y) : (j == 2u ? q.z : q.w));
}

// EIGHTS_PER_SCALE: of a quad.
const uint EIGHTS_PER_SCALE = ROWWISE && SCALE_BLOCK < WEIGHT_QUAD ? SCALE_BLOCK / 8u : WEIGHT_QUAD / 8u;

#endif
