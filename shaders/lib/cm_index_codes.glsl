// Codes of indexer queries and keys as matrix elements. Which position in a row of elements a
// number gets does not matter as long as it is the same for queries and keys, so the codes of a
// word stay in the order in which masks and shifts yield them, two at a time.
//
// What the elements lack of the numbers' scale:
//   FP8    every code is exact, times 2^-8
//   MXFP4  a row is scaled so that its largest block scale becomes 2; exact for blocks down
//          to 2^-24 of it, and wrong by at most 2^-25 where the largest code is 12 below that.
//          The row's part is cm_row_scale
// CM_UNSCALE is what a product of a query's and a key's elements has to be multiplied by. An E4M3
// NaN code counts as 480.
//
// The including kernel has included cm_element.glsl and index_logits.glsl.
#ifndef LIB_CM_INDEX_CODES_GLSL
#define LIB_CM_INDEX_CODES_GLSL

const float CM_UNSCALE = FORMAT == INDEX_FP8 ? 65536.0 : 0.25;

// cm_fp8x8: E4M3's exponent has bias 7, binary16's 15, and both have subnormals: moving the bits is
// enough.
uvec4 cm_fp8x8(uvec2 w) {
    const uvec4 sign = uvec4(w.x << 8, w.x, w.y << 8, w.y) & 0x80008000u;
    return sign | (uvec4(w.x << 7, w.x >> 1, w.y << 7, w.y >> 1) & 0x3F803F80u);
}

uint cm_top_scale(uint scales) {
    const uvec2 two = uvec2(max(scales & 0xFFu, (scales >> 8) & 0xFFu), max((scales >> 16) & 0xFFu, scales >> 24));
    return max(two.x, two.y);
}

// 2^15 for the largest scale of a row, with 2^-14 from cm_e2m1_place; 0 from 2^-30 of it on.
f16vec2 cm_fp4_scale(uint scales, uint b) {
    return unpackFloat2x16((30u - min(cm_top_scale(scales) - logit_block_scale(scales, b), 30u)) * 0x04000400u);
}
float cm_row_scale(uint scales) { return ue8m0_scale(cm_top_scale(scales)); }

uint cm_fp4_scaled(uint x, f16vec2 scale) { return packFloat2x16(unpackFloat2x16(x) * scale); }

uint cm_e2m1_place(uint w) { return (w & 0x80008000u) | ((w >> 3) & 0x0E000E00u); }

// cm_fp4x8: the eight codes of w.
uvec4 cm_fp4x8(uint w, f16vec2 scale) {
    return uvec4(cm_fp4_scaled(cm_e2m1_place(w << 12), scale), cm_fp4_scaled(cm_e2m1_place(w << 8), scale),
                 cm_fp4_scaled(cm_e2m1_place(w << 4), scale), cm_fp4_scaled(cm_e2m1_place(w), scale));
}

#endif
