// Request-local top-k entries to global slots of a paged cache. For l = topk[t][c], r =
// token_to_req[t]:
//   slots[t][c] = l >= 0 ? block_table[r][l / page] * page + l % page : -1
//   lens[t] = is_valid[t] ? number of c with l >= 0 : 0
// Bindings: 0 topk [T,k] i32; 1 token_to_req [T] i32; 2 block_table [requests,table_width] i32;
//   3 is_valid [T] u8 (read as words); 4 slots [T,k] i32; 5 lens [T] i32. Rows are written for
//   invalid tokens too; entries keep their column. An entry or request outside the table, or on an
//   unallocated (negative) page, gives -1; lens counts what topk holds.
// Workgroup: token x, 128 invocations.  Constants: 0 page (slots).
// Shared memory: 512 bytes.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 64u;

layout(std430, set = 0, binding = 0) readonly buffer Topk { int v[]; } topk;
layout(std430, set = 0, binding = 1) readonly buffer TokenToReq { int v[]; } token_to_req;
layout(std430, set = 0, binding = 2) readonly buffer BlockTable { int v[]; } block_table;
layout(std430, set = 0, binding = 3) readonly buffer IsValid { uint words[]; } is_valid;
layout(std430, set = 0, binding = 4) writeonly buffer Slots { int v[]; } slots;
layout(std430, set = 0, binding = 5) writeonly buffer Lens { int v[]; } lens;

layout(push_constant) uniform Push {
    uint topk;
    uint requests;
    uint table_width;
} pc;

#include "lib/paged_index.glsl"

shared uint count_s[128];

void main() {
    const uint t = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
    const int request = token_to_req.v[t];
    uint count = 0u;
    for (uint c = lane; c < pc.topk; c += 128u) {
        const int l = topk.v[t * pc.topk + c];
        slots.v[t * pc.topk + c] = l >= 0 ? paged_slot(request, uint(l), PAGE) : -1;
        count += l >= 0 ? 1u : 0u;
    }
    count_s[lane] = count;
    for (uint half_ = 64u; half_ > 0u; half_ >>= 1) {
        barrier();
        if (lane < half_) count_s[lane] += count_s[lane + half_];
    }
    if (lane == 0u) {
        const bool valid = ((is_valid.words[t >> 2] >> ((t & 3u) * 8u)) & 0xFFu) != 0u;
        lens.v[t] = valid ? int(count_s[0]) : 0;
    }
}
