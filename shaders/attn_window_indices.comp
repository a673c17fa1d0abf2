// Slots of the sliding window of decode tokens, oldest first. Token i < tokens of request
// r = token_to_req[i] has position p = seq_lens[r] - (query_start[r+1] - query_start[r]) + (i -
// query_start[r]). With a = max(p - window + 1, 0), len = p - a + 1:
//   slots[i][j] = block_table[r][(a+j) / page] * page + (a+j) % page for j < len
//   rest -1;  lens[i] = len
// With DRAFTS the tokens of a request are a block, all of whose rows each of them attends, and the
// window is that of the newest position before the block: a = max(seq_lens[r] - (query_start[r+1] -
// query_start[r]) - window, 0), len = min(seq_lens[r] - a, width).
// Bindings: 0 query_start [requests+1] i32; 1 seq_lens [requests] i32; 2 token_to_req [T] i32;
//   3 is_valid [T] u8 (read as words); 4 block_table [requests,table_width] i32;
//   5 slots [tokens,width] i32; 6 lens [rows] i32, rows >= tokens. An invalid token, or a request
//   outside the table: length 0, its row left as it was. lens of rows >= tokens: 0.
// Workgroup: row x of lens, 128 invocations.  Constants: 0 page (slots), 1 DRAFTS.
// Shared memory: none.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 64u;
layout(constant_id = 1) const uint DRAFTS = 0u;

layout(std430, set = 0, binding = 0) readonly buffer QueryStart { int v[]; } query_start;
layout(std430, set = 0, binding = 1) readonly buffer SeqLens { int v[]; } seq_lens;
layout(std430, set = 0, binding = 2) readonly buffer TokenToReq { int v[]; } token_to_req;
layout(std430, set = 0, binding = 3) readonly buffer IsValid { uint words[]; } is_valid;
layout(std430, set = 0, binding = 4) readonly buffer BlockTable { int v[]; } block_table;
layout(std430, set = 0, binding = 5) writeonly buffer Slots { int v[]; } slots;
layout(std430, set = 0, binding = 6) writeonly buffer Lens { int v[]; } lens;

layout(push_constant) uniform Push {
    uint tokens;
    uint window;
    uint requests;
    uint table_width;
    uint width; // of a row of slots; window without DRAFTS
} pc;

#include "lib/paged_index.glsl"

void main() {
    const uint i = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
    int len = 0;
    if (i < pc.tokens && ((is_valid.words[i >> 2] >> ((i & 3u) * 8u)) & 0xFFu) != 0u && uint(token_to_req.v[i]) < pc.requests) {
        const int r = token_to_req.v[i];
        int last = seq_lens.v[r] - query_start.v[r + 1] + int(i); // p: the two query_start[r] cancel
        int a = max(last - int(pc.window) + 1, 0);
        if (DRAFTS > 0u) {
            last = seq_lens.v[r] - 1;
            a = max(seq_lens.v[r] - (query_start.v[r + 1] - query_start.v[r]) - int(pc.window), 0);
        }
        len = clamp(last - a + 1, 0, int(pc.width));
        for (uint j = lane; j < pc.width; j += 128u) {
            slots.v[i * pc.width + j] = int(j) < len ? paged_slot(r, uint(a) + j, PAGE) : -1;
        }
    }
    if (lane == 0u) lens.v[i] = len;
}
