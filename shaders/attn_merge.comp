// Joins the partial rows of a split attention: M = max m_i, w_i = exp2(m_i - M), L = sum w_i l_i,
//   out = sum w_i acc_i / (L + exp2(sink - M)), lse = ln 2 * (M + log2 L). The sink enters here and nowhere else.
// bindings: 0 part_out [T,splits,H,512] f32; 1 part_ml [T,splits,H] (m, l, max, 0) f32, base 2; 2 sink [H] f32;
//   3 dst [T,H,512] bf16; 4 lse [T,H] f32; 5 max_logits [T,H] f32. A part with l = 0 is empty: its accumulator is not read.
//   With TURN: 6 positions [T] i32; 7 table [rows,64] f32: the last 64 numbers of out, rounded, are turned back as proj_inverse_rope does.
// One workgroup of 128*GROUPS: one (head, token); an invocation owns 4 dims, and of every GROUPS*AHEAD parts AHEAD, which it adds in the
// order of their number; then the sums are added in that of theirs. At most 128 parts. Shared memory: 1536 + 2048*GROUPS B. Features: none.
// Constants: 0 AHEAD, 1 GROUPS: attention/merge.go.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/bf16.glsl"
#include "lib/mla_finish.glsl"
#include "lib/rope_bf16.glsl"

layout(local_size_x = 128, local_size_y_id = 1) in;

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

layout(constant_id = 0) const uint AHEAD = 4u; // loads in flight; one past the last part takes as long as another
const uint GROUPS = gl_WorkGroupSize.y;

shared vec4 m_s[32];  // [128] of the parts
shared vec4 l_s[32];  // [128] weighted
shared float w_s[128];
shared vec4 acc_s[GROUPS * 128u];

float max_of(vec4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }

void main() {
    const uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y, lane = gl_LocalInvocationID.x, group = gl_LocalInvocationID.y;
    const uint first = t * pc.splits * pc.heads + head, last = pc.splits - 1u; // part i: first + i*heads
    // The first rows are loaded before it is known what they weigh. Past the end the last one is loaded again, and what an
    // empty part left unwritten is loaded and dropped.
    vec4 x[AHEAD];
    uint base = group * AHEAD;
    [[unroll]] for (uint k = 0u; k < AHEAD; k++) x[k] = part_out.rows[(first + min(base + k, last) * pc.heads) * 128u + lane];
    vec4 part = vec4(MLA_FLOOR, 0.0, MLA_FLOOR, 0.0); // empty
    if (group == 0u) {
        if (lane < pc.splits) part = part_ml.rows[first + lane * pc.heads];
        m_s[lane / 4u][lane % 4u] = part.y == 0.0 ? MLA_FLOOR : part.x;
    }
    const float sink2 = (pc.flags & HAS_SINK) != 0u ? mla_sink(sink.v[head]) : MLA_NO_SINK;
    const bool turns = (pc.flags & TURN) != 0u && lane >= 112u; // two pairs
    vec4 cos_sin = vec4(0.0);
    if (turns) cos_sin = table_cos_sin2(uint(clamp(positions.v[t], 0, int(pc.table_rows) - 1)), (lane - 112u) * 2u, false) * vec4(1.0, -1.0, 1.0, -1.0);
    barrier();
    const uint fours = (pc.splits + 3u) / 4u;
    vec4 m4 = vec4(MLA_FLOOR);
    for (uint i = 0u; i < fours; i++) m4 = max(m4, m_s[i]);
    const float m = max_of(m4);
    if (group == 0u) {
        const float w = part.y == 0.0 ? 0.0 : exp2(max(part.x - m, -300.0));
        w_s[lane] = w;
        l_s[lane / 4u][lane % 4u] = w * part.y;
    }
    barrier();
    vec4 acc = vec4(0.0);
    [[dont_unroll]] for (;;) {
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            const float w = base + k <= last ? w_s[min(base + k, 127u)] : 0.0;
            if (w != 0.0) acc += w * x[k];
        }
        base += GROUPS * AHEAD;
        if (base > last) break;
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) x[k] = part_out.rows[(first + min(base + k, last) * pc.heads) * 128u + lane];
    }
    if (GROUPS > 1u) {
        acc_s[group * 128u + lane] = acc;
        barrier();
        if (group > 0u) return;
        [[unroll]] for (uint g = 1u; g < GROUPS; g++) acc += acc_s[g * 128u + lane];
    }
    vec4 l4 = vec4(0.0);
    for (uint i = 0u; i < fours; i++) l4 += l_s[i];
    const float l = (l4.x + l4.y) + (l4.z + l4.w);
    const vec4 o = l == 0.0 ? vec4(0.0) : acc * mla_factor(m, l, sink2);
    const uint at = t * pc.heads + head;
    uvec2 w = uvec2(bf16_pack2(o.x, o.y), bf16_pack2(o.z, o.w));
    if (turns) w = rope_bf16_words(uvec4(w, w), cos_sin, cos_sin).xy;
    dst.words[at * 128u + lane] = w;
    if (lane == 0u && (pc.flags & WANT_LSE) != 0u) lse.v[at] = mla_lse(m, l);
    if (lane == 0u && (pc.flags & WANT_MAX) != 0u) {
        float top = MLA_FLOOR;
        for (uint i = 0u; i < pc.splits; i++) {
            const vec4 p = part_ml.rows[first + i * pc.heads];
            if (p.y != 0.0) top = max(top, p.z);
        }
        max_logits.v[at] = mla_max_logit(top, l);
    }
}
