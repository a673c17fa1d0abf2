// Sparse MLA decode over two paged FP8 caches, as attn_decode_cm, whose formula, bindings, constants and features are its own but for what follows, for
// workgroups with fewer heads than fit: few tokens leave compute units idle, and the work of a token is spread over more of them.
// One workgroup of THREADS: (HG heads, one of `splits` ranges of entries, one token). With one split it finishes the row, else attn_merge does.
// bindings: 0 q [T,H,512] bf16; 1 win_indices [T,win_width] i32; 2 win_lens [T] i32; 3 comp_indices [T,comp_width] i32; 4 comp_lens [T] i32;
//   5 sink [H] f32; 6 dst [T,H,512] bf16; 7 lse [T,H] f32; 8 part_out [T,splits,H,512] f32; 9 part_ml [T,splits,H] (m, l, max, 0) f32;
//   10 positions [T] i32; 11 table [rows,64] f32, with TURN or NORM_Q. TURN: the last 64 numbers of dst, rounded, are turned back as proj_inverse_rope
//   does. NORM_Q: heads of q are divided by their root mean square, turned and rounded before anything else, as proj_q_insert does.
// Constants: 0 window page, 1 compressed page (slots), 2 HG, 3 TILE, 4 THREADS, 5 SUBGROUP, 6..8 M, N, K of a matrix product, 9 KSPLIT.
// Shared memory: 46404 B at HG 16, TILE 32, KSPLIT 4 and 47748 B at HG 32, KSPLIT 2 (lib/cm_mla_ring.glsl has the sum).
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel, bufferDeviceAddress, shaderInt64, subgroupSizeControl,
// computeFullSubgroups, shaderInt16.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "lib/cm_decode.glsl"
#include "lib/cm_locate.glsl"
#include "lib/rope_bf16.glsl"

layout(std430, set = 0, binding = 10) readonly buffer Positions { int v[]; } positions;
ROPE_TABLE(table, 11)

#define CM_ONE_BUFFER
#define CM_TURNS
#define CM_NORMS
#include "lib/cm_mla_ring.glsl"

#include "lib/cm_lanes_row.glsl"

void cm_fetch(uvec4 where, out CmRow row) { cm_fetch_row(where.xyz, row); }

void cm_keep(CmRow row, uint mask, uint at) {
    [[unroll]] for (uint i = 0u; i < WORDS; i++) row.words[i] &= mask;
    [[unroll]] for (uint i = 0u; i < ROPES; i++) row.rope[i] &= mask;
    row.half_word &= mask;
    cm_keep_row(row, at);
}

#include "lib/cm_mla_ring_loop.glsl"

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    cm_tid = gl_LocalInvocationIndex;
    uvec4 w0[Q_EACH], w1[Q_EACH]; // on their way while it is found out what there is to attend
    cm_fetch_q(t, head0, 0u, w0);
    if (HEAD_TILES > Q_STAGE) cm_fetch_q(t, head0, Q_STAGE, w1);
    cm_position_ = positions.v[cm_norms() ? t : 0u];
    comp_len_ = (pc.flags & HAS_COMP) != 0u ? uint(clamp(comp_lens.v[t], 0, int(pc.comp_width))) : 0u;
    uint n = comp_len_ + uint(clamp(win_lens.v[t], 0, int(pc.win_width)));
    if ((pc.win_pages | pc.comp_pages) == 0u) n = 0u;
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = uint(ceil((float(tiles) - 0.5) / float(pc.splits))) * TILE; // of tiles/splits, rounded up
    float m, l, top;
    cm_attend(t, head0, split, min(split * chunk, n), min((split + 1u) * chunk, n), w0, w1, m, l, top);
    const uint head = head0 + gl_LocalInvocationIndex;
    if (pc.splits == 1u && (pc.flags & WANT_LSE) != 0u && gl_LocalInvocationIndex < HG && head < pc.heads) {
        lse.v[t * pc.heads + head] = mla_lse(m, l);
    }
}
