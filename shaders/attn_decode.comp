// Sparse MLA decode over two paged FP8 caches, read in place. Token t attends its comp_lens[t] compressed entries, then its
// win_lens[t] window entries; per head s_j = scale*dot(q, k_j), out = sum exp(s_j) k_j / (sum exp(s_j) + exp(sink)), lse = ln sum exp(s_j).
// bindings: 0 q [T,H,512] bf16; 1 win_indices [T,win_width] i32; 2 win_lens [T] i32; 3 comp_indices [T,comp_width] i32; 4 comp_lens [T] i32;
//   5 sink [H] f32; 6 dst [T,H,512] bf16; 7 lse [T,H] f32; 8 part_out [T,splits,H,512] f32; 9 part_ml [T,splits,H] (m, l, max, 0) f32;
//   10 window pool, 11 compressed pool (only without KV_DA). Indices are global slots; negative or past the pool: masked, never read.
// One workgroup of 128: (HG heads, one of `splits` ranges of entries, one token). With one split it finishes the row, else attn_merge does.
// Constants: 0 window page, 1 compressed page (slots), 2 HG, 3 TILE (HG*TILE <= 128). Shared memory: 15248 B at HG 4, TILE 8; 21664 B at HG 8, TILE 8.
// Features: none; KV_DA: bufferDeviceAddress, shaderInt64.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/bf16.glsl"
#include "lib/e4m3.glsl"
#include "lib/ue8m0.glsl"
#include "lib/mla_finish.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint WIN_PAGE = 64u;
layout(constant_id = 1) const uint COMP_PAGE = 64u;
layout(constant_id = 2) const uint HG = 4u;
layout(constant_id = 3) const uint TILE = 8u;

layout(std430, set = 0, binding = 0) readonly buffer QBuf { uvec2 words[]; } q;
layout(std430, set = 0, binding = 1) readonly buffer WinIndices { int v[]; } win_indices;
layout(std430, set = 0, binding = 2) readonly buffer WinLens { int v[]; } win_lens;
layout(std430, set = 0, binding = 3) readonly buffer CompIndices { int v[]; } comp_indices;
layout(std430, set = 0, binding = 4) readonly buffer CompLens { int v[]; } comp_lens;
layout(std430, set = 0, binding = 5) readonly buffer Sink { uint v[]; } sink;
layout(std430, set = 0, binding = 6) writeonly buffer Dst { uvec2 words[]; } dst;
layout(std430, set = 0, binding = 7) writeonly buffer Lse { uint v[]; } lse;
layout(std430, set = 0, binding = 8) writeonly buffer PartOut { vec4 rows[]; } part_out;
layout(std430, set = 0, binding = 9) writeonly buffer PartMl { vec4 rows[]; } part_ml;

const uint HAS_SINK = 1u, HAS_COMP = 2u, WANT_LSE = 4u;

layout(push_constant) uniform Push {
    KV_ADDR win_addr;
    KV_ADDR comp_addr;
    uint heads;
    uint win_width;
    uint comp_width;
    uint win_pages;
    uint comp_pages;
    uint win_stride; // bytes per page
    uint comp_stride;
    uint splits;
    uint flags;
    float scale_log2e; // softmax scale * log2(e)
    uint table_rows;   // attn_decode_few
    float eps;         // likewise
} pc;

KV_POOL(win, 10)
KV_POOL(comp, 11)

uint comp_len_; // compressed entries of this workgroup's token

float mla_sink_of(uint head) { return (pc.flags & HAS_SINK) != 0u ? mla_sink(sink.v[head]) : MLA_NO_SINK; }

// place = (page, slot in it)
bool mla_locate(uint t, uint j, out uvec2 place) {
    const bool comp = j < comp_len_;
    const int at = comp ? comp_indices.v[t * pc.comp_width + j] : win_indices.v[t * pc.win_width + j - comp_len_];
    const uint u = uint(at);
    place = comp ? uvec2(u / COMP_PAGE, u % COMP_PAGE) : uvec2(u / WIN_PAGE, u % WIN_PAGE);
    return at >= 0 && place.x < (comp ? pc.comp_pages : pc.win_pages);
}

uvec2 row_word2(bool comp, uint page, uint at) { return comp ? comp_word2(page, at) : win_word2(page, at); }

void mla_load(uint j, uvec2 place, uint unit, out uvec2 w[8]) {
    const bool comp = j < comp_len_;
    const uint row = kv_row_byte(place.y);
    if (unit >= 14u) {
        [[unroll]] for (uint e = 0u; e < 8u; e++) w[e] = row_word2(comp, place.x, row + KV_ROPE_BYTE + (unit - 14u) * 64u + e * 8u);
        return;
    }
    const uvec2 scales = row_word2(comp, place.x, kv_scale_byte(comp ? COMP_PAGE : WIN_PAGE, place.y));
    const float scale = ue8m0_scale(kv_scale_of(scales, unit >> 1));
    [[unroll]] for (uint e = 0u; e < 4u; e++) {
        const uvec2 codes = row_word2(comp, place.x, row + unit * 32u + e * 8u);
        const vec4 a = e4m3_decode4(codes.x) * scale, b = e4m3_decode4(codes.y) * scale;
        w[2u * e] = uvec2(bf16_pack2_exact(a.x, a.y), bf16_pack2_exact(a.z, a.w));
        w[2u * e + 1u] = uvec2(bf16_pack2_exact(b.x, b.y), bf16_pack2_exact(b.z, b.w));
    }
}

#include "lib/sparse_mla.glsl"

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    comp_len_ = (pc.flags & HAS_COMP) != 0u ? uint(clamp(comp_lens.v[t], 0, int(pc.comp_width))) : 0u;
    const uint n = comp_len_ + uint(clamp(win_lens.v[t], 0, int(pc.win_width)));
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = (tiles + pc.splits - 1u) / pc.splits * TILE;
    float m, l;
    mla_attend(t, head0, split, min(split * chunk, n), min((split + 1u) * chunk, n), m, l);
    const uint head = head0 + gl_LocalInvocationID.x;
    if (pc.splits == 1u && (pc.flags & WANT_LSE) != 0u && gl_LocalInvocationID.x < HG && head < pc.heads) {
        lse.v[t * pc.heads + head] = mla_lse(m, l);
    }
}
