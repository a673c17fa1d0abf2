// What the builds of the indexer's logits have in common: bindings, push constants, finding a key,
// storing a logit.
//
//   0 q [T,H,128] E4M3 or [T,H,64] with two E2M1 codes a byte; 1 q_scale [T,H] u32, 4 UE8M0 bytes
//   (MXFP4); 2 weights [T,H] f32; 3 block_table [R,table_width] i32; 4 token_to_req [T] i32; 5 lens
//   [T] i32; 6 dst [T,width] f32; 7 the pool of keys; 8 side [T,side_width] i32: candidate blocks.
//   All are reached as lib/addressed.glsl says.
//   With RAW_QUERIES q is [T,H,128] bf16, weights are bf16, and there is no q_scale: see
//   index_raw.glsl.
//
// Included after kv_page.glsl.
#ifndef LIB_INDEX_LOGITS_GLSL
#define LIB_INDEX_LOGITS_GLSL
#include "index_page.glsl"
#include "tensors.glsl"
#include "ue8m0.glsl"

layout(constant_id = 0) const uint PAGE = 64u;   // keys of a page
layout(constant_id = 1) const uint FORMAT = 1u;  // INDEX_FP8 or INDEX_MXFP4

layout(push_constant) uniform Push {
    ADDRESS q_addr;
    ADDRESS q_scale_addr; // with RAW_QUERIES of positions
    ADDRESS weights_addr;
    ADDRESS block_table_addr;
    ADDRESS token_to_req_addr;
    ADDRESS lens_addr;
    ADDRESS keys_addr;
    ADDRESS dst_addr;
    ADDRESS side_addr;
    uint keys_stride; // bytes per page
    uint keys_pages;
    uint tokens;      // with RAW_QUERIES rows of angles
    uint heads;
    uint first;       // entry of column 0 of dst
    uint width;       // columns of dst
    uint requests;
    uint table_width;
    uint chunk;       // fewest tiles of keys of a workgroup; unused by the builds without matrices
    uint side_width;  // columns of side: candidate blocks, or tops in idx_logits_lanes; 0 for none
    ADDRESS table_addr; // of angles; it and what follows with RAW_QUERIES
    float softmax_scale;
    float head_scale;
#ifdef PICKS
    uint64_t picks_addr; // [T, K] i32
    uint64_t slots_addr; // the same
    uint64_t counts_addr;
    uint64_t slot_table_addr; // [slot_requests, slot_width] i32
    uint64_t lists_addr;
    uint64_t arrived_addr;
    uint k;
    uint group;  // shares of a slice
    uint slices; // of the longest row
    uint slot_requests;
    uint slot_width;
    uint limit;  // entries of a row at most
#endif
} pc;
TENSOR(uvec2, q, 0)
TENSOR(uint, q_scale, 1)
TENSOR(float, weights, 2)
TENSOR(int, block_table, 3)
TENSOR(int, token_to_req, 4)
TENSOR(int, lens, 5)
TENSOR(int, side, 8)

#define LOGIT_NONE uintBitsToFloat(0xFF800000u) // of an entry whose page is not there

#ifdef PICKS
layout(buffer_reference, std430, buffer_reference_align = 4) coherent writeonly buffer LogitWrite { float v; };
void logit_store(uint t, uint column, float x) { LogitWrite(pc.dst_addr + (uint64_t(t) * pc.width + column) * 4ul).v = x; }
#elif defined(ADDRESSED)
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer LogitWrite { float v; };
void logit_store(uint t, uint column, float x) { LogitWrite(pc.dst_addr + (uint64_t(t) * pc.width + column) * 4ul).v = x; }
#else
layout(std430, set = 0, binding = 6) writeonly buffer Dst { float v[]; } dst;
void logit_store(uint t, uint column, float x) { dst.v[t * pc.width + column] = x; }
#endif

// logit_end: one past the last entry that token t wants.
uint logit_end(uint t) { return min(uint(max(lens_at(t), 0)), pc.first + pc.width); }

// logit_page: the page of entry n of a request, or a number beyond the pool if there is none.
uint logit_page(int request, uint n) {
    const uint column = n / PAGE;
    const bool inside = uint(request) < pc.requests && column < pc.table_width;
    const int page = block_table_at(inside ? uint(request) * pc.table_width + column : 0u);
    return inside ? uint(page) : 0xFFFFFFFFu;
}

// logit_entry: the entry that a column of token t's candidate blocks is, with `size` entries in
// each; a number beyond every table if there is no such block.
uint logit_entry(uint t, uint column, uint size) {
    const uint block = uint(side_at(t * pc.side_width + min(column / size, pc.side_width - 1u)));
    return min(block, 0xFFFFFFFFu / size) * size + column % size;
}

// logit_block_scale: UE8M0 byte b of a row's four.
uint logit_block_scale(uint scales, uint b) { return (scales >> (b * 8u)) & 0xFFu; }

#endif
