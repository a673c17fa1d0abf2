// What attn_decode_cm and attn_decode_lanes both declare besides lib/mla_decode.glsl: constants,
// and how the lists of a token name its rows. The kernels say what they are.
#ifndef LIB_CM_DECODE_GLSL
#define LIB_CM_DECODE_GLSL
#include "kv_page.glsl"
#include "kv_record.glsl"

layout(local_size_x = 256, local_size_x_id = 4) in;
layout(constant_id = 2) const uint HG = 64u;
layout(constant_id = 3) const uint TILE = 16u;
const uint THREADS = gl_WorkGroupSize.x;
layout(constant_id = 5) const uint SUBGROUP = 32u;
layout(constant_id = 6) const uint CM_M = 16u;
layout(constant_id = 7) const uint CM_N = 16u;
layout(constant_id = 8) const uint CM_K = 16u;
layout(constant_id = 9) const uint KSPLIT = 2u;

#include "mla_decode.glsl"

// cm_find: (candidate from the compressed indices, candidate from the window's). Both are read, one
// of them out of place, so that no load depends on a condition.
uvec2 cm_find(uint t, uint j) {
    const bool comp = j < comp_len_;
    const uint comp_at = comp_len_ == 0u ? 0u : t * pc.comp_width + min(j, comp_len_ - 1u);
    const uint win_at = pc.win_width == 0u ? 0u : t * pc.win_width + (comp ? 0u : j - comp_len_);
    return uvec2(comp_indices.v[comp_at], win_indices.v[win_at]);
}

#endif
