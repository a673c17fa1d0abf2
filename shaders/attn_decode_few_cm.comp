// Sparse MLA decode over two paged FP8 caches, as attn_decode_cm, whose formula, bindings, constants and features are its own, for
// workgroups with fewer heads than fit: few tokens leave compute units idle, and the work of a token is spread over more of them.
// One workgroup of THREADS: (HG heads, one of `splits` ranges of entries, one token). With one split it finishes the row, else attn_merge does.
// bindings: 0 q [T,H,512] bf16; 1 win_indices [T,win_width] i32; 2 win_lens [T] i32; 3 comp_indices [T,comp_width] i32; 4 comp_lens [T] i32;
//   5 sink [H] f32; 6 dst [T,H,512] bf16; 7 lse [T,H] f32; 8 part_out [T,splits,H,512] f32; 9 part_ml [T,splits,H] (m, l, max, 0) f32.
// Constants: 0 window page, 1 compressed page (slots), 2 HG, 3 TILE, 4 THREADS, 5 SUBGROUP, 6..8 M, N, K of a matrix product, 9 KSPLIT.
// Shared memory: 45700 B at HG 16, TILE 16, KSPLIT 8 (lib/cm_mla_ring.glsl has the sum).
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel, bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups.
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
#include "lib/cm_mla_ring.glsl"

// A row is 56 words of 8 E4M3 bytes and 16 words of 4 bf16; the invocations of a row take them in turn.
const uint NOPE_WORDS = KV_NOPE / 8u, ROPE_WORDS = KV_ROPE / 4u;
const uint ROPE_EACH = (ROPE_WORDS + ROW_PARTS - 1u) / ROW_PARTS;
// What is left of the E4M3 words, where it is half a word for each invocation, goes round in words of 4 bytes.
const uint NOPE_REST = NOPE_WORDS % ROW_PARTS;
const bool HALVES = NOPE_REST * 2u == ROW_PARTS;
const uint NOPE_EACH = NOPE_REST == 0u || HALVES ? NOPE_WORDS / ROW_PARTS : NOPE_WORDS / ROW_PARTS + 1u;
const uint HALF_AT = NOPE_EACH * ROW_PARTS; // words before them

struct CmRow {
    uvec2 nope[NOPE_EACH];
    uint rest;
    uvec2 rope[ROPE_EACH];
    uvec2 scales;
};

void cm_fetch(uvec4 where, out CmRow row) {
    const uint64_t at = packUint2x32(where.xy);
    row.scales = KvRead2(at + where.z).v;
    [[unroll]] for (uint i = 0u; i < NOPE_EACH; i++) row.nope[i] = KvRead2(at + min(i * ROW_PARTS + cm_part, NOPE_WORDS - 1u) * 8u).v;
    if (HALVES) row.rest = KvRead1(at + HALF_AT * 8u + cm_part * 4u).v;
    [[unroll]] for (uint i = 0u; i < ROPE_EACH; i++) {
        row.rope[i] = KvRead2(at + KV_ROPE_BYTE + min(i * ROW_PARTS + cm_part, ROPE_WORDS - 1u) * 8u).v;
    }
}

void cm_move(inout CmRow to, CmRow from) {
    [[unroll]] for (uint i = 0u; i < NOPE_EACH; i++) to.nope[i] = from.nope[i];
    [[unroll]] for (uint i = 0u; i < ROPE_EACH; i++) to.rope[i] = from.rope[i];
    to.rest = from.rest;
    to.scales = from.scales;
}

void cm_keep(CmRow row, uint mask, uint at) {
    const uvec2 scales = row.scales & mask;
    [[unroll]] for (uint i = 0u; i < NOPE_EACH; i++) {
        const uint word = i * ROW_PARTS + cm_part;
        const uvec4 x = cm_e4m3x8(row.nope[i] & mask, cm_scale(kv_scale_of(scales, word / 8u)));
        if (word < NOPE_WORDS) kv_s[at * KV_PITCH + word] = x;
    }
    if (HALVES) {
        const uvec2 x = cm_e4m3x4(row.rest & mask, cm_scale(kv_scale_of(scales, (HALF_AT + cm_part / 2u) / 8u)));
        const uint to = at * KV_PITCH + HALF_AT + cm_part / 2u;
        kv_s[to][cm_part % 2u * 2u] = x.x;
        kv_s[to][cm_part % 2u * 2u + 1u] = x.y;
    }
    [[unroll]] for (uint i = 0u; i < ROPE_EACH; i++) {
        const uint word = i * ROW_PARTS + cm_part, to = at * KV_PITCH + NOPE_WORDS + word / 2u;
        const uvec2 w = row.rope[i] & mask;
        if (word < ROPE_WORDS) {
            kv_s[to][word % 2u * 2u] = cm_from_bf16(w.x);
            kv_s[to][word % 2u * 2u + 1u] = cm_from_bf16(w.y);
        }
    }
}

#include "lib/cm_mla_ring_loop.glsl"

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    cm_tid = gl_LocalInvocationIndex;
    uvec4 w0[Q_EACH], w1[Q_EACH]; // on their way while it is found out what there is to attend
    cm_fetch_q(t, head0, 0u, w0);
    if (HEAD_TILES > Q_STAGE) cm_fetch_q(t, head0, Q_STAGE, w1);
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
