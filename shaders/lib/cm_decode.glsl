// What attn_decode_cm and attn_decode_lanes both declare: constants, bindings, push constants, and
// how the lists of a token name its rows. The kernels say what they are.
#ifndef LIB_CM_DECODE_GLSL
#define LIB_CM_DECODE_GLSL
#include "kv_page.glsl"
#include "kv_record.glsl"
#include "mla_finish.glsl"

layout(local_size_x = 256, local_size_x_id = 4) in;
layout(constant_id = 0) const uint WIN_PAGE = 64u;
layout(constant_id = 1) const uint COMP_PAGE = 64u;
layout(constant_id = 2) const uint HG = 64u;
layout(constant_id = 3) const uint TILE = 16u;
const uint THREADS = gl_WorkGroupSize.x;
layout(constant_id = 5) const uint SUBGROUP = 32u;
layout(constant_id = 6) const uint CM_M = 16u;
layout(constant_id = 7) const uint CM_N = 16u;
layout(constant_id = 8) const uint CM_K = 16u;
layout(constant_id = 9) const uint KSPLIT = 2u;

#ifndef CM_Q_LOADS // volatile, where loads have to stay where they are written
#define CM_Q_LOADS
#endif

layout(std430, set = 0, binding = 0) CM_Q_LOADS readonly buffer QBuf { uvec4 rows[]; } q;
layout(std430, set = 0, binding = 1) readonly buffer WinIndices { int v[]; } win_indices;
layout(std430, set = 0, binding = 2) readonly buffer WinLens { int v[]; } win_lens;
layout(std430, set = 0, binding = 3) readonly buffer CompIndices { int v[]; } comp_indices;
layout(std430, set = 0, binding = 4) readonly buffer CompLens { int v[]; } comp_lens;
layout(std430, set = 0, binding = 5) readonly buffer Sink { uint v[]; } sink;
layout(std430, set = 0, binding = 6) writeonly buffer Dst { uvec4 rows[]; } dst;
layout(std430, set = 0, binding = 7) writeonly buffer Lse { uint v[]; } lse;
layout(std430, set = 0, binding = 8) writeonly buffer PartOut { vec4 rows[]; } part_out;
layout(std430, set = 0, binding = 9) writeonly buffer PartMl { vec4 rows[]; } part_ml;

const uint HAS_SINK = 1u, HAS_COMP = 2u, WANT_LSE = 4u, UNROPE = 16u, NORM_Q = 32u;

layout(push_constant) uniform Push {
    uint64_t win_addr;
    uint64_t comp_addr;
    uint heads;
    uint win_width;
    uint comp_width;
    uint win_pages;
    uint comp_pages;
    uint win_stride; // bytes per page
    uint comp_stride;
    uint splits;
    uint flags;
    float scale_log2e; // softmax scale * log2(e)
    uint table_rows;   // attn_decode_cm
    float eps;         // attn_decode_cm
} pc;

uint comp_len_; // compressed entries of this workgroup's token

float mla_sink_of(uint head) { return (pc.flags & HAS_SINK) != 0u ? mla_sink(sink.v[head]) : MLA_NO_SINK; }

// cm_find: (candidate from the compressed indices, candidate from the window's). Both are read, one
// of them out of place, so that no load depends on a condition.
uvec2 cm_find(uint t, uint j) {
    const bool comp = j < comp_len_;
    const uint comp_at = comp_len_ == 0u ? 0u : t * pc.comp_width + min(j, comp_len_ - 1u);
    const uint win_at = pc.win_width == 0u ? 0u : t * pc.win_width + (comp ? 0u : j - comp_len_);
    return uvec2(comp_indices.v[comp_at], win_indices.v[win_at]);
}

#endif
