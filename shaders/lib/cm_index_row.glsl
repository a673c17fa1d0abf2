// Rows of indexer queries and keys as matrix elements in shared memory: a row's 128 numbers come in
// 8 parts of 16; see cm_index_codes.glsl. The including kernel has included cm_element.glsl and
// index_logits.glsl and declares row_s, rows of ROW_PITCH uvec4.
#ifndef LIB_CM_INDEX_ROW_GLSL
#define LIB_CM_INDEX_ROW_GLSL

const uint ROW_PARTS = 8u;   // invocations of a row

#ifdef CM_CODES

const uint ROW_PITCH = 9u;   // 128 bytes, and 16 as below
const float CM_UNSCALE = 1.0;

float cm_row_scale(uint scales) { return 1.0; }

void cm_keep_halves(uvec4 codes, uint scales, uint part, uint first, uint second, uint exchange) {
    row_s[first] = exchange == 0u ? codes : codes.zwxy;
}

#else

#include "cm_index_codes.glsl"

const uint ROW_PITCH = 17u;  // 256 bytes, and 16 so that the rows of a fragment fall into different banks

// cm_keep_halves: part `part` of a row, 16 bytes of E4M3 or, in codes.xy, 8 bytes of E2M1 codes:
// its halves to two places in row_s, each with its own halves exchanged or not.
void cm_keep_halves(uvec4 codes, uint scales, uint part, uint first, uint second, uint exchange) {
    uvec4 a, b;
    if (FORMAT == INDEX_FP8) {
        a = cm_fp8x8(codes.xy);
        b = cm_fp8x8(codes.zw);
    } else {
        const f16vec2 scale = cm_fp4_scale(scales, part / 2u);
        a = cm_fp4x8(codes.x, scale);
        b = cm_fp4x8(codes.y, scale);
    }
    row_s[first] = exchange == 0u ? a : a.zwxy;
    row_s[second] = exchange == 0u ? b : b.zwxy;
}

#endif

// cm_keep_part: the two halves of a part lie 128 bytes apart, so that the 8 invocations of a row
// store without conflict.
void cm_keep_part(uvec4 codes, uint scales, uint row, uint part, uint exchange) {
    cm_keep_halves(codes, scales, part, row * ROW_PITCH + part, row * ROW_PITCH + ROW_PARTS + part, exchange);
}

#endif
