// Sparse MLA decode over two paged caches, read in place, with cooperative matrices of any
// layout. Token t attends the first comp_lens[t] slots of comp_indices[t], then the first
// win_lens[t] of win_indices[t]. A slot outside its pool is never read. Per head:
//   s_j = scale*dot(q, k_j),  lse = ln sum exp(s_j)
//   out = sum exp(s_j) k_j / (sum exp(s_j) + exp(sink))
// Bindings: 0 q [T,H,512] bf16; 1 win_indices [T,win_width] i32; 2 win_lens [T] i32;
//   3 comp_indices [T,comp_width] i32; 4 comp_lens [T] i32; 5 sink [H] f32; 6 dst [T,H,512] bf16;
//   7 lse [T,H] f32; 8 part_out [T,splits,H,512] f32; 9 part_ml [T,splits,H] (m, l, max, 0) f32;
//   10 positions [T] i32; 11 table [rows,64] f32. Pools by address. With UNROPE the last 64 numbers
//   of dst are rotated back as proj_inverse_rope does, with NORM_Q q is first normed and rotated as
//   proj_q_insert does, both with the same bits.
// Workgroup: HG heads (x) of one of `splits` ranges of entries (y) of token z. With one split it
//   finishes the row, else attn_merge does.
// Constants: 0 window page, 1 compressed page (slots), 2 HG, 3 TILE, 4 THREADS, 5 SUBGROUP,
//   6..8 M, N, K of a matrix product, 9 KSPLIT: attention/matrix.go chooses them; 10 ROWS of
//   lib/cm_rows.glsl; 11 WIN_RECORD, 12 COMP_RECORD (lib/kv_record.glsl), both V4's or neither.
//   FLOAT8, which a build with CM_BF16 defines: the device converts E4M3 codes.
// Shared memory: 46404 bytes at HG 16, TILE 32, KSPLIT 4; lib/cm_mla.glsl has the sum.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel,
//   bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups, shaderInt16; with
//   FLOAT8 shaderFloat8, shaderInt8.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#define ADDRESSED
#include "lib/cm_decode.glsl"
layout(constant_id = 10) const uint ROWS = 0u;
layout(constant_id = 11) const uint WIN_RECORD = 0u;
layout(constant_id = 12) const uint COMP_RECORD = 0u;
#define CM_TURN (ROWS == 0u ? 2u : 1u) // with ROWS all output passes through kv_s
#define CM_NEXT (ROWS == 0u ? 1u : ROW_PARTS)
#include "lib/cm_locate.glsl"
#include "lib/rope_bf16.glsl"

layout(std430, set = 0, binding = 10) readonly buffer Positions { int v[]; } positions;
ROPE_TABLE(table, 11)

const uint BUFFERS = 1u;
const bool KEEP_TOP = false;
#include "lib/cm_mla.glsl"
#include "lib/cm_q_norm.glsl"
#include "lib/cm_lanes_row.glsl"

void cm_fetch(uvec4 where, out CmRow row) { cm_fetch_row(where.xyz, row); }

void cm_keep(CmRow row, uint mask, uint at) {
    cm_mask_row(row, mask);
    cm_keep_row(row, at)
}

// An invocation writes the same 8 numbers of every head. Of the last 64 these are four pairs, which
// may be rotated back.
bool cm_rotates() { return (pc.flags & UNROPE) != 0u && cm_tid % 64u >= 56u; }

vec4 cm_back_near, cm_back_far; // cosines and negated sines of the four pairs

void cm_prepare_output(uint t) {
    cm_back_near = vec4(0.0);
    cm_back_far = vec4(0.0);
    if (!cm_rotates()) return;
    const uint row = uint(clamp(positions.v[t], 0, int(pc.table_rows) - 1)), pair = (cm_tid % 64u - 56u) * 4u;
    cm_back_near = table_cos_sin2(row, pair, false) * vec4(1.0, -1.0, 1.0, -1.0);
    cm_back_far = table_cos_sin2(row, pair + 2u, false) * vec4(1.0, -1.0, 1.0, -1.0);
}

uvec4 cm_output(vec4 x, vec4 y) {
    const uvec4 w = uvec4(cm_out2(x.xy), cm_out2(x.zw), cm_out2(y.xy), cm_out2(y.zw));
    return cm_rotates() ? rope_bf16_words(w, cm_back_near, cm_back_far) : w;
}

#include "lib/cm_mla_tiles.glsl"

// cm_loop: positions [cm_begin, cm_end) of token t, cm_begin < cm_end; the first lots of Q are
// fetched. Four barriers a tile, which is twice as large as those of attn_prefill_cm:
//
//   load t+1, weights of t | acc += P V of t | rows of t+1 to shared memory, places of t+2 |
//   scores of t+1
void cm_loop(uint t, uint head0, uvec4 w0[Q_EACH], uvec4 w1[Q_EACH]) {
    const uint tiles = (cm_end - cm_begin + TILE - 1u) / TILE;
    {
        const uint at = cm_begin + min(cm_tid, RING * TILE - 1u);
        const uvec2 found = cm_find_row(t, at);
        cm_find_angles();
        if (cm_norms()) cm_q_sums(w0);
        if (cm_tid < RING * TILE) cm_keep_where(found, at, cm_tid);
        barrier();
        CmRow row;
        cm_fetch_tile(0u, row);
        if (cm_norms()) cm_q_norm(w0);
        cm_load_q(t, head0, w0, w1);
        cm_keep_tile(row, 0u, 0u);
    }
    barrier();
    cm_scores(0u);

    uint tile = 0u;
    [[dont_unroll]] while (tile < tiles) { // again only when a score outgrew m
        const uint fresh = tile; // not again for the tile whose maximum m is: NaN outgrows any
        barrier();
        cm_rescale(tile);
        [[dont_unroll]] for (;;) {
            CmRow row;
            uvec2 found;
            const uint at = cm_begin + (tile + 2u) * TILE + cm_tid % TILE;
            if (tile + 1u < tiles) { // parts of few tokens mostly have one tile
                cm_fetch_tile(tile + 1u, row);
                found = cm_find_row(t, at);
            }
            cm_weights(tile);
            barrier();
            const bool stale = stale_s != 0u && tile != fresh;
            if (!stale) {
                cm_accumulate(0u);
                tile++;
            }
            if (stale || tile >= tiles) break; // the only one: with two, Mesa 26 drops the block of an exit
            barrier();
            cm_keep_tile(row, tile, 0u);
            if (cm_tid < TILE) cm_keep_where(found, at, (tile + 1u) % RING * TILE + cm_tid);
            barrier();
            cm_scores(0u);
            barrier();
        }
    }
    barrier();
}

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    cm_tid = gl_LocalInvocationIndex;
    uvec4 w0[Q_EACH], w1[Q_EACH]; // on their way while lists are looked up
    cm_fetch_q(t, head0, 0u, w0);
    if (HEAD_TILES > Q_STAGE) cm_fetch_q(t, head0, Q_STAGE, w1);
    cm_position_ = positions.v[cm_norms() ? t : 0u];
    comp_len_ = (pc.flags & HAS_COMP) != 0u ? uint(clamp(comp_lens.v[t], 0, int(pc.comp_width))) : 0u;
    uint n = comp_len_ + uint(clamp(win_lens.v[t], 0, int(pc.win_width)));
    if ((pc.win_pages | pc.comp_pages) == 0u) n = 0u;
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = uint(ceil((float(tiles) - 0.5) / float(pc.splits))) * TILE; // of tiles/splits, rounded up
    float m, l, top;
    cm_start(min(split * chunk, n), min((split + 1u) * chunk, n));
    if (cm_begin < cm_end) cm_loop(t, head0, w0, w1);
    cm_finish(t, head0, split, m, l, top);
    const uint head = head0 + gl_LocalInvocationIndex;
    if (pc.splits == 1u && (pc.flags & WANT_LSE) != 0u && gl_LocalInvocationIndex < HG && head < pc.heads) {
        lse.v[t * pc.heads + head] = mla_lse(m, l);
    }
}
