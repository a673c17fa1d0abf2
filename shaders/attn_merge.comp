// Joins the partial rows of a split attention: M = max m_i, w_i = exp2(m_i - M), L = sum w_i l_i,
//   out = sum w_i acc_i / (L + exp2(sink - M)), lse = ln 2 * (M + log2 L). The sink enters here and nowhere else.
// bindings: 0 part_out [T,splits,H,512] f32; 1 part_ml [T,splits,H] (m, l, max, 0) f32, base 2; 2 sink [H] f32;
//   3 dst [T,H,512] bf16; 4 lse [T,H] f32; 5 max_logits [T,H] f32. A part with l = 0 is empty: its accumulator is not read.
//   With TURN: 6 positions [T] i32; 7 table [rows,64] f32: the last 64 numbers of out, rounded, are turned back as proj_inverse_rope does.
// One workgroup of 128: one (head, token); an invocation owns 4 dims. Parts are added in the order of their number.
// At most 128 parts. Shared memory: 2048 B. Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/bf16.glsl"
#include "lib/mla_finish.glsl"
#include "lib/rope_bf16.glsl"

layout(local_size_x = 128) in;

layout(std430, set = 0, binding = 0) readonly buffer PartOut { vec4 rows[]; } part_out;
layout(std430, set = 0, binding = 1) readonly buffer PartMl { vec4 rows[]; } part_ml;
layout(std430, set = 0, binding = 2) readonly buffer Sink { uint v[]; } sink;
layout(std430, set = 0, binding = 3) writeonly buffer Dst { uvec2 words[]; } dst;
layout(std430, set = 0, binding = 4) writeonly buffer Lse { uint v[]; } lse;
layout(std430, set = 0, binding = 5) writeonly buffer MaxLogits { uint v[]; } max_logits;

layout(std430, set = 0, binding = 6) readonly buffer Positions { int v[]; } positions;
ROPE_TABLE(table, 7)

const uint HAS_SINK = 1u, WANT_LSE = 4u, WANT_MAX = 8u, TURN = 16u;

layout(push_constant) uniform Push {
    uint heads;
    uint splits;
    uint flags;
    uint table_rows;
} pc;

shared vec4 part_s[128];

layout(constant_id = 0) const uint AHEAD = 16u; // loads in flight, at most the power of two that follows the number of parts

void main() {
    const uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y, lane = gl_LocalInvocationID.x;
    const uint first = t * pc.splits * pc.heads + head, last = pc.splits - 1u; // part i: first + i*heads
    // Rows are loaded many at a time, the first ones before it is known what they weigh. Past the end the last one is
    // loaded again, and what an empty part left unwritten is loaded and dropped.
    vec4 x[AHEAD];
    [[unroll]] for (uint k = 0u; k < AHEAD; k++) x[k] = part_out.rows[(first + min(k, last) * pc.heads) * 128u + lane];
    if (lane < pc.splits) part_s[lane] = part_ml.rows[first + lane * pc.heads];
    barrier();
    const bool turns = (pc.flags & TURN) != 0u && lane >= 112u; // two pairs
    vec4 cos_sin = vec4(0.0);
    if (turns) cos_sin = table_cos_sin2(uint(clamp(positions.v[t], 0, int(pc.table_rows) - 1)), (lane - 112u) * 2u, false) * vec4(1.0, -1.0, 1.0, -1.0);
    float m = MLA_FLOOR, top = MLA_FLOOR;
    for (uint i = 0u; i < pc.splits; i++) {
        const vec4 part = part_s[i];
        const bool empty = part.y == 0.0;
        m = empty ? m : max(m, part.x);
        top = empty ? top : max(top, part.z);
    }
    barrier();
    if (lane < pc.splits) { // the weights, each by one invocation
        const vec4 part = part_s[lane];
        const float w = part.y == 0.0 ? 0.0 : exp2(max(part.x - m, -300.0));
        part_s[lane] = vec4(w, w * part.y, 0.0, 0.0);
    }
    barrier();
    float l = 0.0;
    vec4 acc = vec4(0.0);
    for (uint i = 0u; i < pc.splits; i += AHEAD) {
        if (i > 0u) {
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) x[k] = part_out.rows[(first + min(i + k, last) * pc.heads) * 128u + lane];
        }
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            const vec2 w = i + k <= last ? part_s[min(i + k, last)].xy : vec2(0.0);
            l += w.y;
            if (w.x != 0.0) acc += w.x * x[k];
        }
    }
    const float sink2 = (pc.flags & HAS_SINK) != 0u ? mla_sink(sink.v[head]) : MLA_NO_SINK;
    const vec4 o = l == 0.0 ? vec4(0.0) : acc * mla_factor(m, l, sink2);
    const uint at = t * pc.heads + head;
    uvec2 w = uvec2(bf16_pack2(o.x, o.y), bf16_pack2(o.z, o.w));
    if (turns) w = rope_bf16_words(uvec4(w, w), cos_sin, cos_sin).xy;
    dst.words[at * 128u + lane] = w;
    if (lane != 0u) return;
    if ((pc.flags & WANT_LSE) != 0u) lse.v[at] = mla_lse(m, l);
    if ((pc.flags & WANT_MAX) != 0u) max_logits.v[at] = mla_max_logit(top, l);
}
