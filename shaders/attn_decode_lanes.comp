// Sparse MLA decode over two paged caches, read in place, with cooperative matrices whose
// elements lie in lanes as lib/cm_lanes.glsl wants them. Token t attends the first comp_lens[t]
// slots of comp_indices[t], then the first win_lens[t] of win_indices[t]. A slot outside its pool
// is never read. Per head:
//   s_j = scale*dot(q, k_j),  lse = ln sum exp(s_j)
//   out = sum exp(s_j) k_j / (sum exp(s_j) + exp(sink))
// Bindings: 0 q [T,H,512] bf16; 1 win_indices [T,win_width] i32; 2 win_lens [T] i32;
//   3 comp_indices [T,comp_width] i32; 4 comp_lens [T] i32; 5 sink [H] f32; 6 dst [T,H,512] bf16;
//   7 lse [T,H] f32; 8 part_out [T,splits,H,512] f32; 9 part_ml [T,splits,H] (m, l, max, 0) f32.
//   Pools by address. Of part_ml, max is m.
// Workgroup: HG heads (x) of one of `splits` ranges of entries (y) of token z. With one split it
//   finishes the row, else attn_merge does.
// Constants: 0 window page, 1 compressed page (slots), 2 HG, 3 TILE, 4 THREADS, 5 SUBGROUP,
//   6..8 M, N, K of a matrix product, 9 KSPLIT, 10 PARTS: attention/lanes.go chooses them;
//   11 WIN_RECORD, 12 COMP_RECORD (lib/kv_record.glsl), both RECORD_V4 or neither.
// Shared memory: 48260 bytes at HG 64, TILE 16, KSPLIT 4; lib/cm_lanes.glsl has the sum.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel,
//   bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups, shaderInt16,
//   subgroup shuffle and ballot.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define CM_Q_LOADS volatile // a qualifier can be no constant
#define ADDRESSED
#include "lib/cm_decode.glsl"

layout(constant_id = 10) const uint PARTS = 4u;
layout(constant_id = 11) const uint WIN_RECORD = 0u;
layout(constant_id = 12) const uint COMP_RECORD = 0u;

#include "lib/cm_locate.glsl"
#include "lib/cm_decode_lanes.glsl"

uvec4 cm_output(vec4 x, vec4 y) { return uvec4(cm_out2(x.xy), cm_out2(x.zw), cm_out2(y.xy), cm_out2(y.zw)); }

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    // The shuffle changes nothing (pc.heads < 2^31). Without it, compilers short of registers read
    // the lane again in every tile, five times.
    cm_place(t, subgroupShuffle(gl_SubgroupInvocationID, gl_SubgroupInvocationID ^ (pc.heads >> 31)));
    const bool has_comp = (pc.flags & HAS_COMP) != 0u;
    const int comp_n = comp_lens.v[has_comp ? t : 0u], win_n = win_lens.v[t];
    const float sink2 = mla_sink_of(min(head0 + min(gl_LocalInvocationIndex, HG - 1u), pc.heads - 1u)); // nothing waits for it here
    uvec4 w[Q_ALL];
    cm_fetch_q(head0, w); // on its way before the lengths are known
    comp_len_ = has_comp ? uint(clamp(comp_n, 0, int(pc.comp_width))) : 0u;
    uint n = comp_len_ + uint(clamp(win_n, 0, int(pc.win_width)));
    if ((pc.win_pages | pc.comp_pages) == 0u) n = 0u;
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = pc.splits == 1u ? n : uint(ceil((float(tiles) - 0.5) / float(pc.splits))) * TILE; // of tiles/splits, rounded up
    cm_begin = min(split * chunk, n);
    cm_end = min((split + 1u) * chunk, n);
    cm_attend(sink2, w);

    // The first of the lanes that share a head's row finishes it.
    [[unroll]] for (uint r = 0u; r < LANE_HEADS; r++) {
        const float l = CM_FINAL_L(cm_row_sum(l_[r])), m = CM_FINAL_M(m_[r]);
        const uint h = cm_own_head(r / ROWS4, r % ROWS4 * 4u / ROWS4), head = head0 + h;
        if (cm_quarter == 0u) {
            factor_s[h / 4u][h % 4u] = mla_factor(m, l, factor_s[h / 4u][h % 4u]); // there were sinks
            if (head < pc.heads) {
                if (pc.splits > 1u) part_ml.rows[(t * pc.splits + split) * pc.heads + head] = vec4(m, l, m, 0.0);
                else if ((pc.flags & WANT_LSE) != 0u) lse.v[t * pc.heads + head] = mla_lse(m, l);
            }
        }
    }
    if (pc.splits > 1u) {
        if (cm_begin >= cm_end) return; // its accumulator is never read
        if (head0 + HG <= pc.heads) {
            cm_write_parts(t, head0, split);
            return;
        }
    }
    barrier();
    cm_put_output(head0, split);
}
