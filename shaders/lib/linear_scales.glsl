// Scales of a linear layer's weights. Include where SCALE_WORD(i) is word i of them and ROW_LENGTH
// the numbers of a row of weights.
#ifndef LIB_LINEAR_SCALES_GLSL
#define LIB_LINEAR_SCALES_GLSL
#include "formats.glsl"

#define FORMAT_BESIDE
#include "format_list.glsl"
#undef FORMAT_BESIDE

// w_block_bits: with STEP_SUMS, the f32 bits of the scale of row `row` (of all groups) at k; 1
// where rows have scales, which the sums are multiplied by.
uint w_block_bits(uint row, uint k) {
    if (!STORED_SCALES) return ONE;
    const uint i = row / SCALE_BLOCK * ((ROW_LENGTH + SCALE_BLOCK - 1u) / SCALE_BLOCK) + k / SCALE_BLOCK;
    if (F32_SCALES) return SCALE_WORD(i);
    return (SCALE_WORD(i >> 2) >> ((i & 3u) * 8u) & 0xFFu) << 23;
}

// w_beside: what is loaded beside the quad of weights at k: scales of the row, or the bits of the
// one of SMALL_BLOCKS.
uvec2 w_beside(uint row, uint k) {
#define CASE_BESIDE(upper, lower) if (CODEC == CODEC_##upper) return lower##_beside(row, k);
    ROWWISE_CODECS(CASE_BESIDE)
    return uvec2(SMALL_BLOCKS ? w_block_bits(row, k) : 0u, 0u);
}

#endif
