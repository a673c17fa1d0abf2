// Sparse MLA over a bf16 workspace (prefill, second pass of the two-pass decode) with cooperative
// matrices of any layout. Token t attends rows indices[t][j], j < lens[t] (without lens
// all of them). A row outside the workspace is never read. Per head:
//   s_j = scale*dot(q, k_j),  lse = ln sum exp(s_j),  max_logits = max s_j
//   out = sum exp(s_j) k_j / (sum exp(s_j) + exp(sink))
// Bindings: 0 q [T,H,512] bf16; 1 indices [T,width] i32; 2 lens [T] i32; 3 sink [H] f32;
//   4 dst [T,H,512] bf16; 5 max_logits [T,H] f32; 6 lse [T,H] f32; 7 part_out [T,splits,H,512] f32;
//   8 part_ml [T,splits,H] (m, l, max, 0) f32; kv [rows,512] bf16 by address, its values
//   as lib/cm_element.glsl says.
// With SOME_TOKENS a token with a negative length is left alone: nothing of it is written.
// Workgroup: HG heads (x) of one of `splits` ranges of entries (y) of token z. With one split it
//   finishes the row, else attn_merge does.
// Constants: 0 HG, 1 TILE, 2 THREADS, 3 SUBGROUP, 4..6 M, N, K of a matrix product, 7 KSPLIT:
//   attention/matrix.go chooses them; 8 READY, 1: rows of kv are elements already; 9 ROWS of
//   lib/cm_rows.glsl.
// Shared memory: 48132 bytes at HG 64, TILE 16, KSPLIT 2; lib/cm_mla.glsl has the sum.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel,
//   bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/cm.glsl"
#define ADDRESSED
#include "lib/kv_page.glsl"

layout(local_size_x = 256, local_size_x_id = 2) in;
layout(constant_id = 0) const uint HG = 64u;
layout(constant_id = 1) const uint TILE = 16u;
const uint THREADS = gl_WorkGroupSize.x;
layout(constant_id = 3) const uint SUBGROUP = 32u;
layout(constant_id = 4) const uint CM_M = 16u;
layout(constant_id = 5) const uint CM_N = 16u;
layout(constant_id = 6) const uint CM_K = 16u;
layout(constant_id = 7) const uint KSPLIT = 2u;
layout(constant_id = 8) const uint READY = 0u;
layout(constant_id = 9) const uint ROWS = 0u;

#include "lib/mla_prefill.glsl"

const uint BUFFERS = 2u;
const bool KEEP_TOP = true;
#define CM_DIVIDE_FIRST
#include "lib/cm_mla.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer WorkspaceRow { uvec4 w[]; };

float mla_sink_of(uint head) { return (pc.flags & HAS_SINK) != 0u ? mla_sink(sink.v[head]) : MLA_NO_SINK; }

// A row is 64 words of 8 bf16; the invocations of a row take them in turn.
const uint ROW_WORDS = KV_D / 8u;
const uint WORDS_EACH = (ROW_WORDS + ROW_PARTS - 1u) / ROW_PARTS;
const bool WHOLE = ROW_WORDS % ROW_PARTS == 0u;

struct CmRow {
    uvec4 w[WORDS_EACH];
};

uvec2 cm_find(uint t, uint j) { return uvec2(indices.v[t * pc.width + j], 0u); }

uvec4 cm_locate(uvec2 found, uint j, bool inside) {
    const bool valid = inside && int(found.x) >= 0 && found.x < pc.rows;
    const uint64_t at = pc.kv_addr + uint64_t(valid ? found.x : 0u) * (KV_D * 2u); // row 0 stands in; cm_keep zeroes it
    return uvec4(uint(at), uint(at >> 32), 0u, valid ? ~0u : 0u);
}

// No compiler knows that cm_part is below ROW_PARTS: where no row has less, there is one address.
void cm_fetch(uvec4 where, out CmRow row) {
    WorkspaceRow from = WorkspaceRow(packUint2x32(where.xy) + (WHOLE ? cm_part * 16u : 0u));
    [[unroll]] for (uint i = 0u; i < WORDS_EACH; i++) {
        row.w[i] = from.w[WHOLE ? i * ROW_PARTS : min(i * ROW_PARTS + cm_part, ROW_WORDS - 1u)];
    }
}

void cm_move(inout CmRow to, CmRow from) {
    [[unroll]] for (uint i = 0u; i < WORDS_EACH; i++) to.w[i] = from.w[i];
}

void cm_keep(CmRow row, uint mask, uint at) {
    [[unroll]] for (uint i = 0u; i < WORDS_EACH; i++) {
        const uint word = i * ROW_PARTS + cm_part;
        const uvec4 w = row.w[i] & mask;
        const uvec4 e = READY != 0u ? w : cm_from_bf16x8(w);
        if (WHOLE || word < ROW_WORDS) CM_KEEP_ROW(kv_s, at * KV_PITCH + word, (TILE % 16u == 0u ? cm_row : at), e)
    }
}

uint cm_q_place(uint i) { return i * THREADS + cm_tid; }

void cm_prepare_output(uint t) {}

uvec4 cm_output(vec4 x, vec4 y) { return uvec4(bf16_pack2(x.x, x.y), bf16_pack2(x.z, x.w), bf16_pack2(y.x, y.y), bf16_pack2(y.z, y.w)); }

#include "lib/cm_mla_tiles.glsl"

// cm_loop: positions [cm_begin, cm_end) of token t, cm_begin < cm_end; the first lots of Q are
// fetched. Two barriers a tile:
//
//   acc += P V of t, load t+2, scores of t+1 |
//   weights of t+1, rows of t+2 to shared memory, places of t+3
void cm_loop(uint t, uint head0, uvec4 w0[Q_EACH], uvec4 w1[Q_EACH]) {
    const uint tiles = (cm_end - cm_begin + TILE - 1u) / TILE;
    {
        const uint at = cm_begin + min(cm_tid, RING * TILE - 1u);
        const uvec2 found = cm_find_row(t, at);
        if (cm_tid < RING * TILE) cm_keep_where(found, at, cm_tid);
        barrier();
        CmRow row, row1;
        cm_fetch_tile(0u, row);
        cm_fetch_tile(1u, row1);
        cm_load_q(t, head0, w0, w1);
        [[dont_unroll]] for (uint x = 0u; x < 2u; x++) {
            cm_keep_tile(row, x, x);
            cm_move(row, row1);
        }
    }
    barrier();
    cm_scores(0u);

    uint tile = 0u, buf = 0u;
    bool outgrown = true; // as in attn_decode_cm
    [[dont_unroll]] for (;;) {
        if (outgrown) {
            barrier();
            cm_rescale(tile);
            cm_weights(tile);
        }
        barrier();
        outgrown = stale_s != 0u && !outgrown;
        if (outgrown) continue;
        cm_accumulate(buf);
        tile++;
        if (tile >= tiles) break;
        CmRow row;
        cm_fetch_tile(tile + 1u, row);
        const uint at = cm_begin + (tile + 2u) * TILE + cm_tid % TILE;
        const uvec2 found = cm_find_row(t, at);
        cm_scores(buf ^ 1u);
        barrier();
        cm_weights(tile);
        cm_keep_tile(row, tile + 1u, buf);
        if (cm_tid < TILE) cm_keep_where(found, at, (tile + 2u) % RING * TILE + cm_tid);
        buf ^= 1u;
    }
    barrier();
}

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    if ((pc.flags & SOME_TOKENS) != 0u && lens.v[t] < 0) return; // left alone
    cm_tid = gl_LocalInvocationIndex;
    uvec4 w0[Q_EACH], w1[Q_EACH]; // on their way while lists are looked up
    cm_fetch_q(t, head0, 0u, w0);
    cm_fetch_q(t, head0, Q_STAGE, w1);
    uint n = (pc.flags & HAS_LENS) != 0u ? uint(clamp(lens.v[t], 0, int(pc.width))) : pc.width;
    if (pc.rows == 0u) n = 0u;
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = uint(ceil((float(tiles) - 0.5) / float(pc.splits))) * TILE; // of tiles/splits, rounded up
    float m, l, top;
    cm_start(min(split * chunk, n), min((split + 1u) * chunk, n));
    if (cm_begin < cm_end) cm_loop(t, head0, w0, w1);
    cm_finish(t, head0, split, m, l, top);
    const uint head = head0 + gl_LocalInvocationIndex;
    if (pc.splits == 1u && gl_LocalInvocationIndex < HG && head < pc.heads) {
        if ((pc.flags & WANT_LSE) != 0u) lse.v[t * pc.heads + head] = mla_lse(m, l);
        if ((pc.flags & WANT_MAX) != 0u) max_logits.v[t * pc.heads + head] = mla_max_logit(top, l);
    }
}
