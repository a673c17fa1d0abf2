// Sparse MLA decode over two paged FP8 caches, read in place, with cooperative matrices. Token t attends its comp_lens[t] compressed entries,
// then its win_lens[t] window entries; per head s_j = scale*dot(q, k_j), out = sum exp(s_j) k_j / (sum exp(s_j) + exp(sink)), lse = ln sum exp(s_j).
// bindings: 0 q [T,H,512] bf16; 1 win_indices [T,win_width] i32; 2 win_lens [T] i32; 3 comp_indices [T,comp_width] i32; 4 comp_lens [T] i32;
//   5 sink [H] f32; 6 dst [T,H,512] bf16; 7 lse [T,H] f32; 8 part_out [T,splits,H,512] f32; 9 part_ml [T,splits,H] (m, l, max, 0) f32.
//   Pools by address. Indices are global slots; negative or past the pool: masked, never read.
// One workgroup of THREADS: (HG heads, one of `splits` ranges of entries, one token). With one split it finishes the row, else attn_merge does.
// attn_decode_few_cm is the form for workgroups with fewer heads than fit.
// Constants: 0 window page, 1 compressed page (slots), 2 HG, 3 TILE, 4 THREADS, 5 SUBGROUP, 6..8 M, N, K of a matrix product, 9 KSPLIT:
//   attention/decode_cm.go chooses them. Shared memory: 47236 B at HG 64, TILE 16, KSPLIT 2 (lib/cm_sparse_mla.glsl has the sum).
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel, bufferDeviceAddress, shaderInt64, subgroupSizeControl, computeFullSubgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "lib/cm_decode.glsl"
#include "lib/cm_sparse_mla.glsl"

// A row is 56 words of 8 E4M3 bytes and 16 words of 4 bf16; the invocations of a row take them in turn.
const uint NOPE_WORDS = KV_NOPE / 8u, ROPE_WORDS = KV_ROPE / 4u;
const uint ROPE_EACH = (ROPE_WORDS + ROW_PARTS - 1u) / ROW_PARTS;
const uint NOPE_EACH = (NOPE_WORDS + ROW_PARTS - 1u) / ROW_PARTS;

struct CmRow {
    uvec2 nope[NOPE_EACH];
    uvec2 rope[ROPE_EACH];
    uvec2 scales;
    bool valid;
};

void cm_fetch(uvec2 found, uint j, bool inside, out CmRow row) {
    bool comp = j < comp_len_;
    uint slot = comp ? found.x : found.y; // a negative index is a very large one
    uint page = comp ? slot / COMP_PAGE : slot / WIN_PAGE;
    row.valid = inside && int(slot) >= 0 && page < (comp ? pc.comp_pages : pc.win_pages);
    if (!row.valid) { // slot 0 of a pool that exists stands in; cm_keep zeroes it
        comp = pc.win_pages == 0u;
        slot = 0u;
        page = 0u;
    }
    const uint in_page = slot - page * (comp ? COMP_PAGE : WIN_PAGE);
    const uint64_t at = (comp ? pc.comp_addr : pc.win_addr) + uint64_t(page) * (comp ? pc.comp_stride : pc.win_stride);
    const uint64_t row_at = at + kv_row_byte(in_page);
    row.scales = KvRead2(at + kv_scale_byte(comp ? COMP_PAGE : WIN_PAGE, in_page)).v;
    [[unroll]] for (uint i = 0u; i < NOPE_EACH; i++) {
        row.nope[i] = KvRead2(row_at + min(i * ROW_PARTS + cm_part, NOPE_WORDS - 1u) * 8u).v;
    }
    [[unroll]] for (uint i = 0u; i < ROPE_EACH; i++) {
        row.rope[i] = KvRead2(row_at + KV_ROPE_BYTE + min(i * ROW_PARTS + cm_part, ROPE_WORDS - 1u) * 8u).v;
    }
}

void cm_keep(CmRow row, uint at) {
    cm_set_valid(at, row.valid);
    const uint mask = row.valid ? 0xFFFFFFFFu : 0u;
    const uvec2 scales = row.scales & mask;
    [[unroll]] for (uint i = 0u; i < NOPE_EACH; i++) {
        const uint word = i * ROW_PARTS + cm_part;
        const uvec4 x = cm_e4m3x8(row.nope[i] & mask, cm_scale(kv_scale_of(scales, word / 8u)));
        if (word < NOPE_WORDS) kv_s[at * KV_PITCH + word] = x;
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

#include "lib/cm_sparse_mla_loop.glsl"

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    comp_len_ = (pc.flags & HAS_COMP) != 0u ? uint(clamp(comp_lens.v[t], 0, int(pc.comp_width))) : 0u;
    uint n = comp_len_ + uint(clamp(win_lens.v[t], 0, int(pc.win_width)));
    if ((pc.win_pages | pc.comp_pages) == 0u) n = 0u;
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = (tiles + pc.splits - 1u) / pc.splits * TILE;
    float m, l, top;
    cm_attend(t, head0, split, min(split * chunk, n), min((split + 1u) * chunk, n), m, l, top);
    const uint head = head0 + gl_LocalInvocationIndex;
    if (pc.splits == 1u && (pc.flags & WANT_LSE) != 0u && gl_LocalInvocationIndex < HG && head < pc.heads) {
        lse.v[t * pc.heads + head] = mla_lse(m, l);
    }
}
