// Slot mapping: token i of request r (query_start[r] <= i < query_start[r+1]) has the position
//   p = seq_lens[r] - (query_start[r+1] - query_start[r]) + i - query_start[r]
// and, if it ends a group, (p+1)%RATIO == 0, with q = p/RATIO:
//   slot[i] = table[r, q/PAGE]*PAGE + q%PAGE
// Every other token, tokens past query_start[R], and those for which the table has no page (its
// width exceeded, or a negative entry) get -1. RATIO 1 is the mapping of an uncompressed cache.
// Bindings:  0 query_start [R+1] i32   1 seq_lens [R] i32   2 table [R, W] i32
//            3 slot [tokens] i64, all written
// Workgroup: 64 tokens, one per invocation.  Constants: 0 PAGE slots per page, 1 RATIO.
// Shared memory: 0.  Features: none.
#version 460
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint PAGE = 64;
layout(constant_id = 1) const uint RATIO = 1;

layout(std430, set = 0, binding = 0) readonly buffer QueryStart { int query_start[]; };
layout(std430, set = 0, binding = 1) readonly buffer SeqLens { int seq_lens[]; };
layout(std430, set = 0, binding = 2) readonly buffer Table { int table[]; };
layout(std430, set = 0, binding = 3) writeonly buffer Slot { uvec2 slot[]; };

layout(push_constant) uniform Push {
    uint tokens;
    uint requests; // R
    uint width;    // W
} pc;

uvec2 slot_of(int i) {
    const uvec2 none = uvec2(0xFFFFFFFFu); // int64 -1
    if (i < query_start[0] || i >= query_start[pc.requests]) return none;
    // The last r with query_start[r] <= i; requests without tokens are stepped over.
    uint lo = 0u, hi = pc.requests;
    while (hi - lo > 1u) {
        uint mid = (lo + hi) >> 1;
        if (query_start[mid] <= i) lo = mid; else hi = mid;
    }
    int p = seq_lens[lo] - query_start[lo + 1u] + i;
    if (p < 0 || (uint(p) + 1u) % RATIO != 0u) return none;
    uint q = uint(p) / RATIO;
    if (q / PAGE >= pc.width) return none;
    int page = table[lo * pc.width + q / PAGE];
    if (page < 0) return none;
    uvec2 s;
    umulExtended(uint(page), PAGE, s.y, s.x);
    uint carry;
    s.x = uaddCarry(s.x, q % PAGE, carry);
    s.y += carry;
    return s;
}

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < pc.tokens) slot[i] = slot_of(int(i));
}
