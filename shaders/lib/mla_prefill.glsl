// What all kernels of prefill declare: bindings, push constants. The kernels say what they are.
#ifndef LIB_MLA_PREFILL_GLSL
#define LIB_MLA_PREFILL_GLSL
#include "addressed.glsl"

#ifdef MLA_LANES // attn_prefill_lanes, which norms queries
#define MLA_INDEX uint
#else
#define MLA_INDEX int
#endif

layout(std430, set = 0, binding = 0) readonly buffer QBuf { uvec4 rows[]; } q;
layout(std430, set = 0, binding = 1) readonly buffer Indices { MLA_INDEX v[]; } indices;
layout(std430, set = 0, binding = 2) readonly buffer Lens { int v[]; } lens;
layout(std430, set = 0, binding = 3) readonly buffer Sink { uint v[]; } sink;
layout(std430, set = 0, binding = 4) writeonly buffer Dst { uvec4 rows[]; } dst;
layout(std430, set = 0, binding = 5) writeonly buffer MaxLogits { uint v[]; } max_logits;
layout(std430, set = 0, binding = 6) writeonly buffer Lse { uint v[]; } lse;
layout(std430, set = 0, binding = 7) writeonly buffer PartOut { vec4 rows[]; } part_out;
layout(std430, set = 0, binding = 8) writeonly buffer PartMl { vec4 rows[]; } part_ml;
#ifdef MLA_LANES
layout(std430, set = 0, binding = 9) readonly buffer Positions { int v[]; } positions;
ROPE_TABLE(table, 10)
#endif

const uint HAS_SINK = 1u, HAS_LENS = 2u, WANT_LSE = 4u, WANT_MAX = 8u, SOME_TOKENS = 16u;

layout(push_constant) uniform Push {
    ADDRESS kv_addr;
    uint rows;
    uint heads;
    uint width;
    uint splits;
    uint flags;
    float scale_log2e; // softmax scale * log2(e)
    uint table_rows;   // with MLA_LANES
    float eps;         // with MLA_LANES
} pc;

#endif
