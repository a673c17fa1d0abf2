// Joins the parts of split rows of attention, for each token and head:
//   M = max m_i,  w_i = exp2(m_i - M),  L = sum w_i l_i,  lse = ln 2 * (M + log2 L),
//   out = sum w_i acc_i / (L + exp2(sink - M))       The sink enters here and nowhere else.
// Bindings (with ADDRESSED addresses): 0 part_out [T,splits,H,512] f32; 1 part_ml [T,splits,H] (m,
//   l, max, 0) f32, base 2; 2 sink [H] f32; 3 positions [T] i32; 4 table [rows,64] f32; 5 dst
//   [T,H,512] bf16; 6 lse [T,H] f32; 7 max_logits [T,H] f32. A part with l = 0 is empty: its acc is
//   not read. Where 2, 3 or 4 is absent, any memory of 256 bytes stands in. With UNROPE the last 64
//   numbers of out are rotated back as proj_inverse_rope does.
// Workgroup: head x of token y. An invocation owns 4 dims and, of every GROUPS*AHEAD parts, AHEAD.
//   It adds these in the order of their numbers; then the GROUPS sums are added in the order of
//   theirs.
// Constants: 0 AHEAD, 1 GROUPS: attention/merge.go.  Shared memory: 2064*GROUPS bytes.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/tensors.glsl"

layout(local_size_x = 128, local_size_y_id = 1) in;
layout(constant_id = 0) const uint AHEAD = 4u; // loads in flight; one past the last part takes as long as another
const uint GROUPS = gl_WorkGroupSize.y;
#define MLA_AHEAD AHEAD
#include "lib/mla_join.glsl"

const uint HAS_SINK = 1u, WANT_LSE = 4u, WANT_MAX = 8u, UNROPE = 16u;

layout(push_constant) uniform Push {
    ADDRESS part_out_addr;
    ADDRESS part_ml_addr;
    ADDRESS sink_addr;
    ADDRESS positions_addr;
    ADDRESS table_addr;
    ADDRESS dst_addr;
    ADDRESS lse_addr;
    ADDRESS max_addr;
    uint heads;
    uint splits;
    uint flags;
    uint table_rows;
} pc;
TENSOR(uvec4, part_out, 0)
TENSOR(uvec4, part_ml, 1)
TENSOR_EARLY(uint, sink, 2)
TENSOR_EARLY(int, positions, 3)
TENSOR_EARLY(uvec2, table, 4)
TENSOR_OUT(uvec2, dst, 5)
TENSOR_OUT(uint, lse, 6)
TENSOR_OUT(uint, max, 7)

shared vec4 acc_s[GROUPS * 128u];
shared vec4 state_s[GROUPS]; // m, l, true maximum

void main() {
    const uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y, lane = gl_LocalInvocationID.x, group = gl_LocalInvocationID.y;
    const uint first = t * pc.splits * pc.heads + head, last = pc.splits - 1u; // part i: first + i*heads
    const uint sink_bits = sink_at(head); // asked for early, whether it counts or not
    const bool rotates = (pc.flags & UNROPE) != 0u && lane >= 112u; // two pairs
    MlaJoined j = mla_nothing();
    float top = MLA_FLOOR;
    uvec2 c = uvec2(0u), s = uvec2(0u);
    [[dont_unroll]] for (uint base = group * AHEAD; base <= last; base += GROUPS * AHEAD) {
        // Rows are loaded before it is known what they weigh. Past the end the last one is loaded
        // again, and what an empty part left unwritten is loaded and dropped.
        vec4 x[AHEAD];
        vec2 part[AHEAD];
        float highest[AHEAD];
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            const uint at = first + min(base + k, last) * pc.heads;
            const vec4 state = uintBitsToFloat(part_ml_at(at));
            part[k] = state.xy;
            highest[k] = state.z;
            x[k] = uintBitsToFloat(part_out_at(at * 128u + lane));
        }
        if (rotates) { // on its way with the rows
            const uint angle = uint(clamp(positions_at(t), 0, int(pc.table_rows) - 1)) * ROPE_PAIRS + lane % 16u;
            c = table_at(angle);
            s = table_at(angle + ROPE_PAIRS / 2u);
        }
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            if (base + k > last) part[k].y = 0.0;
            if (part[k].y != 0.0) top = max(top, highest[k]);
        }
        mla_take(j, part, x);
    }
    if (GROUPS > 1u) {
        if (lane == 0u) state_s[group] = vec4(j.m, j.l, top, 0.0);
        acc_s[group * 128u + lane] = j.acc;
        barrier();
        if (group > 0u) return;
        float m = j.m;
        [[unroll]] for (uint g = 1u; g < GROUPS; g++) m = max(m, state_s[g].x);
        mla_raise(j, m);
        [[unroll]] for (uint g = 1u; g < GROUPS; g++) {
            const vec4 state = state_s[g];
            mla_add(j, state.xy, acc_s[g * 128u + lane]);
            top = max(top, state.z);
        }
    }
    const float sink2 = (pc.flags & HAS_SINK) != 0u ? mla_sink(sink_bits) : MLA_NO_SINK;
    const uint at = t * pc.heads + head;
    dst_put(at * 128u + lane, mla_words(j, sink2, rotates, c, s));
    if (lane == 0u && (pc.flags & WANT_LSE) != 0u) lse_put(at, mla_lse(j.m, j.l));
    if (lane == 0u && (pc.flags & WANT_MAX) != 0u) max_put(at, mla_max_logit(top, j.l));
}
