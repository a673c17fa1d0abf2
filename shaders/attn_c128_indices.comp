// Entries of a layer that attends every visible compressed entry. For token i at position p,
// n = clamp((p + 1) / ratio, 0, width), r = token_to_req[i]:
//   global: indices[i][j] = block_table[r][j / page] * page + j % page for j < n, else -1
//   local:  indices[i][j] = j for j < n, else -1       (rows of a gathered workspace)
//   lens[i] = n, or 0 where slot_mapping[i] < 0
// Bindings: 0 positions [T] i32; 1 slot_mapping [T] i64 (low word first; may be absent);
//   2 token_to_req [T] i32; 3 block_table [requests,table_width] i32; 4 indices [T,width] i32;
//   5 lens [T] i32. Rows are written for padding tokens too.
// Workgroup: token x, 128 invocations.  Constants: 0 page (slots).
// Shared memory: none.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint PAGE = 2u;

layout(std430, set = 0, binding = 0) readonly buffer Positions { int v[]; } positions;
layout(std430, set = 0, binding = 1) readonly buffer SlotMapping { int halves[]; } slot_mapping;
layout(std430, set = 0, binding = 2) readonly buffer TokenToReq { int v[]; } token_to_req;
layout(std430, set = 0, binding = 3) readonly buffer BlockTable { int v[]; } block_table;
layout(std430, set = 0, binding = 4) writeonly buffer Indices { int v[]; } indices;
layout(std430, set = 0, binding = 5) writeonly buffer Lens { int v[]; } lens;

const uint LOCAL = 1u, HAS_SLOTS = 2u, WANT_LENS = 4u;

layout(push_constant) uniform Push {
    uint width;
    uint ratio;
    uint requests;
    uint table_width;
    uint flags;
} pc;

#include "lib/paged_index.glsl"

void main() {
    const uint i = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
    // max first: the quotient of a negative int is not wanted, and p + 1 fits an unsigned.
    const uint n = min((uint(max(positions.v[i], -1)) + 1u) / pc.ratio, pc.width);
    const bool local = (pc.flags & LOCAL) != 0u;
    const int r = local ? 0 : token_to_req.v[i];
    for (uint j = lane; j < pc.width; j += 128u) {
        indices.v[i * pc.width + j] = j >= n ? -1 : local ? int(j) : paged_slot(r, j, PAGE);
    }
    if (lane != 0u || (pc.flags & WANT_LENS) == 0u) return;
    const bool padding = (pc.flags & HAS_SLOTS) != 0u && slot_mapping.halves[2u * i + 1u] < 0;
    lens.v[i] = padding ? 0 : int(n);
}
