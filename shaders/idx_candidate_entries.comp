// Entries of picks that were made among candidate blocks: pick c of token t becomes
//   picks[t][i] = blocks[t][c/S]*S + c%S, -1 for a c that is no column of a block of S entries
// With PAGE also, as idx_topk.comp:
//   slots[t][i] = where that entry is in a paged cache, -1 for none
//   counts[t]   = min(lens[t], columns, K), how many picks there are
// Bindings:  0 picks [T, K] i32, changed in place   1 blocks [T, blocks_width] i32
//            2 block_table [requests, table_width] i32   3 token_to_req [T] i32
//            4 lens [T] i32, columns of a token   5 slots [T, K] i32   6 counts [T] i32
// Workgroup: a token.  Constants: 0 PAGE, slots of a page, or 0: no slots are written,
//   1 BLOCK: S, a power of two.
// Shared memory: none.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 0u;
layout(constant_id = 1) const uint BLOCK = 8u;

layout(std430, set = 0, binding = 0) buffer Picks { int picks[]; };
layout(std430, set = 0, binding = 1) readonly buffer Blocks { int blocks[]; };
layout(std430, set = 0, binding = 2) readonly buffer BlockTable { int v[]; } block_table;
layout(std430, set = 0, binding = 3) readonly buffer TokenToReq { int token_to_req[]; };
layout(std430, set = 0, binding = 4) readonly buffer Lens { int lens[]; };
layout(std430, set = 0, binding = 5) writeonly buffer Slots { int slots[]; };
layout(std430, set = 0, binding = 6) writeonly buffer Counts { int counts[]; };

layout(push_constant) uniform Push {
    uint k; // K
    uint blocks_width;
    uint columns; // of a token at most, up to blocks_width*S
    uint requests;
    uint table_width;
} pc;
#include "lib/paged_index.glsl"

void main() {
    const uint t = gl_WorkGroupID.x;
    for (uint i = gl_LocalInvocationID.x; i < pc.k; i += gl_WorkGroupSize.x) {
        const uint at = t * pc.k + i, column = uint(picks[at]);
        int entry = -1;
        if (column < pc.blocks_width * BLOCK) {
            const int block = blocks[t * pc.blocks_width + column / BLOCK];
            if (block >= 0 && block <= 0x7FFFFFFF / int(BLOCK)) entry = block * int(BLOCK) + int(column % BLOCK);
        }
        picks[at] = entry;
        if (PAGE > 0u) slots[at] = entry < 0 ? -1 : paged_slot(token_to_req[t], uint(entry), PAGE);
    }
    if (PAGE > 0u && gl_LocalInvocationID.x == 0u) counts[t] = int(min(uint(max(lens[t], 0)), min(pc.columns, pc.k)));
}
