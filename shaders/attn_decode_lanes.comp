// Sparse MLA decode over two paged FP8 caches, as attn_decode_cm, whose formula and bindings are its own, on devices whose matrices lie in
// lanes as lib/cm_mla_lanes.glsl wants them, for workgroups with as many heads as fit.
// bindings: 0 q [T,H,512] bf16; 1 win_indices [T,win_width] i32; 2 win_lens [T] i32; 3 comp_indices [T,comp_width] i32; 4 comp_lens [T] i32;
//   5 sink [H] f32; 6 dst [T,H,512] bf16; 7 lse [T,H] f32; 8 part_out [T,splits,H,512] f32; 9 part_ml [T,splits,H] (m, l, m, 0) f32.
//   Pools by address. Indices are global slots; negative or past the pool: masked, never read.
// One workgroup of THREADS: (HG heads, one of `splits` ranges of entries, one token). With one split it finishes the row, else attn_merge does.
// Constants: 0 window page, 1 compressed page (slots), 2 HG, 3 TILE, 4 THREADS, 5 SUBGROUP, 6..8 M, N, K of a matrix product, 9 KSPLIT,
//   10 LANES: attention/decode_lanes.go chooses them. Shared memory: 45188 B at HG 64, TILE 16, KSPLIT 2, 256 threads (lib/cm_mla_lanes.glsl).
// Features: as attn_decode_cm, shaderInt16, subgroupShuffle.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "lib/cm_decode.glsl"

layout(constant_id = 10) const uint LANES = 4u;

#include "lib/cm_locate.glsl"
#include "lib/cm_mla_lanes.glsl"

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    cm_begin();
    const bool has_comp = (pc.flags & HAS_COMP) != 0u;
    const int comp_n = comp_lens.v[has_comp ? t : 0u], win_n = win_lens.v[t];
    const float sink2 = mla_sink_of(min(head0 + min(cm_tid, HG - 1u), pc.heads - 1u)); // here, because nothing waits for it
    comp_len_ = has_comp ? uint(clamp(comp_n, 0, int(pc.comp_width))) : 0u;
    uint n = comp_len_ + uint(clamp(win_n, 0, int(pc.win_width)));
    if ((pc.win_pages | pc.comp_pages) == 0u) n = 0u;
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = pc.splits == 1u ? n : uint(ceil((float(tiles) - 0.5) / float(pc.splits))) * TILE; // of tiles/splits, rounded up
    cm_attend(t, head0, split, min(split * chunk, n), min((split + 1u) * chunk, n), sink2);
}
