// Sparse MLA over a bf16 workspace (prefill, second pass of the two-pass decode) with cooperative
// matrices whose elements lie in lanes as lib/cm_lanes.glsl wants them. Token t attends rows
// indices[t][j], j < lens[t] (without lens all of them). A row outside the workspace is never read.
// Per head:
//   s_j = scale*dot(q, k_j),  lse = ln sum exp(s_j),  max_logits = max s_j
//   out = sum exp(s_j) k_j / (sum exp(s_j) + exp(sink))
// Bindings: 0 q [T,H,512] bf16; 1 indices [T,width] i32; 2 lens [T] i32; 3 sink [H] f32;
//   4 dst [T,H,512] bf16; 5 max_logits [T,H] f32; 6 lse [T,H] f32; 7 part_out [T,splits,H,512] f32;
//   8 part_ml [T,splits,H] (m, l, max, 0) f32; 9 positions [T] i32; 10 table [rows,64] f32;
//   kv [rows,512] bf16 by address, its values as lib/cm_element.glsl says.
// With SOME_TOKENS a token with a negative length is left alone: nothing of it is written. With
//   NORM q is first normed and rotated as proj_q_insert does, with the same bits; else positions
//   and table are not read.
// Workgroup: HG heads (x) of one of `splits` ranges of entries (y) of token z. With one split it
//   finishes the row, else attn_merge does.
// Constants: 0 HG, 1 TILE, 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a matrix product, 7 KSPLIT,
//   8 PARTS: attention/lanes.go chooses them; 9 NORM.
// Shared memory: 48260 bytes at HG 64, TILE 16, KSPLIT 4; lib/cm_lanes.glsl has the sum.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel,
//   bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups,
//   subgroup shuffle and ballot.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define ADDRESSED
#include "lib/kv_page.glsl"
#include "lib/rope.glsl"

layout(local_size_x = 256, local_size_x_id = 2) in;
layout(constant_id = 0) const uint HG = 64u;
layout(constant_id = 1) const uint TILE = 16u;
const uint THREADS = gl_WorkGroupSize.x;
layout(constant_id = 3) const uint SUBGROUP = 32u;
layout(constant_id = 4) const uint CM_M = 16u;
layout(constant_id = 5) const uint CM_N = 16u;
layout(constant_id = 6) const uint CM_K = 16u;
layout(constant_id = 7) const uint KSPLIT = 4u;
layout(constant_id = 8) const uint PARTS = 4u;
layout(constant_id = 9) const bool NORM = false;
layout(constant_id = 10) const uint READY = 0u;

#define MLA_LANES
#include "lib/mla_prefill.glsl"

// volatile: otherwise compilers move loads to where their results are stored, and wait there.
layout(buffer_reference, std430, buffer_reference_align = 16) volatile readonly buffer WorkspaceRow { uvec4 w[]; };

#include "lib/cm_lanes.glsl"
#include "lib/cm_lanes_q_norm.glsl"
#include "lib/cm_prefill_lanes.glsl"

uvec4 cm_output(vec4 x, vec4 y) { return uvec4(bf16_pack2(x.x, x.y), bf16_pack2(x.z, x.w), bf16_pack2(y.x, y.y), bf16_pack2(y.z, y.w)); }

float mla_sink_of(uint head) { return (pc.flags & HAS_SINK) != 0u ? mla_sink(sink.v[head]) : MLA_NO_SINK; }

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    if ((pc.flags & SOME_TOKENS) != 0u && lens.v[t] < 0) return; // left alone
    cm_place(t, gl_SubgroupInvocationID);
    uint n = (pc.flags & HAS_LENS) != 0u ? uint(clamp(lens.v[t], 0, int(pc.width))) : pc.width;
    if (pc.rows == 0u) n = 0u;
    cm_begin = 0u; // known before lens is
    cm_end = n;
    if (pc.splits > 1u) {
        const uint tiles = (n + TILE - 1u) / TILE;
        const uint chunk = uint(ceil((float(tiles) - 0.5) / float(pc.splits))) * TILE; // of tiles/splits, rounded up
        cm_begin = min(split * chunk, n);
        cm_end = min((split + 1u) * chunk, n);
    }
    cm_attend(head0);

    // The first of the lanes that share a head's row finishes it.
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) {
        const float l = cm_row_sum(l_[r]), m = m_[r], top = top_[r];
        const uint h = cm_own_head(r / ROWS4, r % ROWS4 * 4u / ROWS4), head = head0 + h;
        if (cm_quarter == 0u) {
            factor_s[h / 4u][h % 4u] = mla_factor(m, l, mla_sink_of(min(head, pc.heads - 1u)));
            if (head < pc.heads) {
                if (pc.splits > 1u) part_ml.rows[(t * pc.splits + split) * pc.heads + head] = vec4(m, l, top, 0.0);
                else {
                    if ((pc.flags & WANT_LSE) != 0u) lse.v[t * pc.heads + head] = mla_lse(m, l);
                    if ((pc.flags & WANT_MAX) != 0u) max_logits.v[t * pc.heads + head] = mla_max_logit(top, l);
                }
            }
        }
    }
    if (pc.splits > 1u && cm_begin >= cm_end) return; // its accumulator is never read
    barrier();
    cm_put_output(head0, split);
}
