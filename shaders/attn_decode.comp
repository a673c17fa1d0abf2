// Sparse MLA decode over two paged caches, read in place. Token t attends the first
// comp_lens[t] slots of comp_indices[t], then the first win_lens[t] of win_indices[t]. A slot
// outside its pool is never read. Per head:
//   s_j = scale*dot(q, k_j),  lse = ln sum exp(s_j)
//   out = sum exp(s_j) k_j / (sum exp(s_j) + exp(sink))
// Bindings: 0 q [T,H,512] bf16; 1 win_indices [T,win_width] i32; 2 win_lens [T] i32;
//   3 comp_indices [T,comp_width] i32; 4 comp_lens [T] i32; 5 sink [H] f32; 6 dst [T,H,512] bf16;
//   7 lse [T,H] f32; 8 part_out [T,splits,H,512] f32; 9 part_ml [T,splits,H] (m, l, max, 0) f32;
//   10 window pool, 11 compressed pool (with ADDRESSED by address).
// Workgroup: HG heads (x) of one of `splits` ranges of entries (y) of token z. With one split it
//   finishes the row, else attn_merge does.
// Constants: 0 window page, 1 compressed page (slots), 2 HG, 3 TILE, 4 invocations, 16*HG;
//   5 WIN_RECORD, 6 COMP_RECORD (lib/kv_record.glsl), both RECORD_V4 or neither.
// Shared memory: 44740 bytes at HG 16, TILE 16; lib/sparse_mla.glsl has the sum.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64; with DOT2 shaderFloat16,
//   shaderMixedFloatDotProductFloat16AccFloat32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/bf16.glsl"
#include "lib/e4m3_bf16.glsl"
#include "lib/kv_record.glsl"
#include "lib/mla_decode.glsl"

layout(local_size_x = 64, local_size_x_id = 4) in;
layout(constant_id = 2) const uint HG = 4u;
layout(constant_id = 3) const uint TILE = 8u;
layout(constant_id = 5) const uint WIN_RECORD = 0u;
layout(constant_id = 6) const uint COMP_RECORD = 0u;

KV_POOL(win, 10)
KV_POOL(comp, 11)

void mla_done(uint t, uint head, float m, float l, float top) {
    if ((pc.flags & WANT_LSE) != 0u) lse.v[t * pc.heads + head] = mla_lse(m, l);
}

int mla_entry(uint t, uint j) {
    return j < comp_len_ ? comp_indices.v[t * pc.comp_width + j] : win_indices.v[t * pc.win_width + j - comp_len_];
}

const uint MLA_LANES = 16u * HG / TILE, MLA_UNITS = 64u / MLA_LANES;
const uint NOPE_UNITS = KV_NOPE / 8u;

// Codes of a unit in two words, rotated numbers in four. The last unit may be either and has four.
// Of records other than V4's a unit has codes in one word or two, and the word with its scale.
struct MlaRow { uvec2 codes[MLA_UNITS]; uvec2 more; uvec2 scales; uint scale_words[MLA_UNITS]; uint record; };

#define MLA_FETCH(pool, page_slots, pages) \
    const uint page = uint(entry) / page_slots, slot = uint(entry) % page_slots, row = kv_row_byte(slot); \
    if (page >= pages) return false; \
    [[unroll]] for (uint i = 0u; i < MLA_UNITS - 1u; i++) w.codes[i] = pool##_word2(page, row + (c + i * MLA_LANES) * 8u); \
    w.codes[MLA_UNITS - 1u] = pool##_word2(page, row + last); \
    w.more = pool##_word2(page, row + last + 8u); \
    w.scales = pool##_word2(page, kv_scale_byte(page_slots, slot));

#define MLA_FETCH_RECORD(pool, page_slots, pages, RECORD_) \
    const uint page = uint(entry) / page_slots, slot = uint(entry) % page_slots; \
    if (page >= pages) return false; \
    const uint row = record_row_byte(RECORD_, slot), scales_at = record_scale_byte(RECORD_, page_slots, slot); \
    [[unroll]] for (uint i = 0u; i < MLA_UNITS; i++) { \
        const uint unit = c + i * MLA_LANES; \
        if (record_nibbles(RECORD_)) w.codes[i] = uvec2(pool##_word(page, row + unit * 4u), 0u); \
        else w.codes[i] = pool##_word2(page, row + unit * 8u); \
        w.scale_words[i] = pool##_word(page, scales_at + (unit * 8u / record_block(RECORD_) & ~3u)); \
    } \
    w.record = RECORD_;

bool mla_fetch(uint j, int entry, uint c, out MlaRow w) {
    [[unroll]] for (uint i = 0u; i < MLA_UNITS; i++) w.codes[i] = uvec2(w.scale_words[i] = 0u);
    w.more = w.scales = uvec2(w.record = 0u);
    if (entry < 0) return false;
    if (WIN_RECORD != RECORD_V4) {
        if (j < comp_len_) {
            MLA_FETCH_RECORD(comp, COMP_PAGE, pc.comp_pages, COMP_RECORD)
        } else {
            MLA_FETCH_RECORD(win, WIN_PAGE, pc.win_pages, WIN_RECORD)
        }
        return true;
    }
    const uint unit = c + (MLA_UNITS - 1u) * MLA_LANES;
    const uint last = unit < NOPE_UNITS ? unit * 8u : KV_ROPE_BYTE + (unit - NOPE_UNITS) * 16u;
    if (j < comp_len_) {
        MLA_FETCH(comp, COMP_PAGE, pc.comp_pages)
    } else {
        MLA_FETCH(win, WIN_PAGE, pc.win_pages)
    }
    return true;
}

uvec4 mla_unit(MlaRow w, uint c, uint i) {
    if (WIN_RECORD != RECORD_V4) {
        const uint d = (c + i * MLA_LANES) * 8u;
        const uint k = d / record_block(WIN_RECORD == COMP_RECORD ? WIN_RECORD : w.record);
        const uint scale_byte = (w.scale_words[i] >> (8u * (k & 3u))) & 0xFFu;
        if (record_nibbles(WIN_RECORD == COMP_RECORD ? WIN_RECORD : w.record)) return fp4_bf16x8(w.codes[i].x, scale_byte);
        return e4m3_bf16x8(w.codes[i], scale_byte);
    }
    if (i == MLA_UNITS - 1u && c + i * MLA_LANES >= NOPE_UNITS) return uvec4(w.codes[i], w.more);
    return e4m3_bf16x8(w.codes[i], kv_scale_of(w.scales, i * MLA_LANES / 8u + c / 8u));
}

#include "lib/sparse_mla.glsl"

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    comp_len_ = (pc.flags & HAS_COMP) != 0u ? uint(clamp(comp_lens.v[t], 0, int(pc.comp_width))) : 0u;
    const uint n = comp_len_ + uint(clamp(win_lens.v[t], 0, int(pc.win_width)));
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = (tiles + pc.splits - 1u) / pc.splits * TILE;
    mla_attend(t, head0, split, min(split * chunk, n), min((split + 1u) * chunk, n));
}
