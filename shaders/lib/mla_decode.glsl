// What all kernels of decode declare: the pages of both pools, bindings, push constants, and the
// sink of a head. The kernels say what they are.
#ifndef LIB_MLA_DECODE_GLSL
#define LIB_MLA_DECODE_GLSL
#include "addressed.glsl"
#include "mla_finish.glsl"

layout(constant_id = 0) const uint WIN_PAGE = 64u;
layout(constant_id = 1) const uint COMP_PAGE = 64u;

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
    ADDRESS win_addr;
    ADDRESS comp_addr;
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
    uint table_rows;   // with matrices
    float eps;         // with matrices
} pc;

uint comp_len_; // compressed entries of this workgroup's token

float mla_sink_of(uint head) { return (pc.flags & HAS_SINK) != 0u ? mla_sink(sink.v[head]) : MLA_NO_SINK; }

#endif
