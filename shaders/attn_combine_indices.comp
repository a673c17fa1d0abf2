// Prefill: rows of the gathered bf16 workspace that each token attends. Request b of the chunk owns
// rows M*b .. M*b+M-1: compressed entries from M*b, window tokens from M*b + N. For token i of
// request b at position p, tl = min((p+1) / ratio, k), sl = min(p+1, window):
//   indices[i][j] = topk[i][j] + M*b                                             for j < tl
//   indices[i][tl+j] = M*b + N + p-sl+1 - (seq_lens[b]-gather_lens[b]) + j       for j < sl
//   rest -1;  lens[i] = tl + sl
// tl comes from the position: an entry -1 of topk inside tl is NOT masked.
// Bindings: 0 topk [T,topk_width] i32; 1 query_start [requests+1] i32 (rebased by its first
//   element); 2 seq_lens [requests] i32; 3 gather_lens [requests] i32; 4 indices [T,width] i32; 5
//   lens [T] i32.
// Workgroup: token x, 128 invocations. A token of no request gets a row of -1, length 0.
// Shared memory: none.  Features: none.
#version 460

layout(local_size_x = 128) in;

layout(std430, set = 0, binding = 0) readonly buffer Topk { int v[]; } topk;
layout(std430, set = 0, binding = 1) readonly buffer QueryStart { int v[]; } query_start;
layout(std430, set = 0, binding = 2) readonly buffer SeqLens { int v[]; } seq_lens;
layout(std430, set = 0, binding = 3) readonly buffer GatherLens { int v[]; } gather_lens;
layout(std430, set = 0, binding = 4) writeonly buffer Indices { int v[]; } indices;
layout(std430, set = 0, binding = 5) writeonly buffer Lens { int v[]; } lens;

layout(push_constant) uniform Push {
    uint requests;
    uint topk;
    uint topk_width;
    uint window;
    uint ratio;
    uint m;
    uint n;
    uint width;
} pc;

void main() {
    const uint i = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
    const int at = int(i) + query_start.v[0];
    // The last request that begins at or before the token: requests without tokens are passed over.
    uint low = 0u, high = pc.requests;
    while (high - low > 1u) {
        const uint mid = (low + high) >> 1;
        if (query_start.v[mid] <= at) low = mid; else high = mid;
    }
    int tl = 0, sl = 0, base = 0, first = 0;
    if (at < query_start.v[pc.requests]) {
        const int seq = seq_lens.v[low];
        const int p = seq - query_start.v[low + 1u] + at;
        const int len = max(p + 1, 0);
        tl = min(len / int(pc.ratio), int(pc.topk));
        sl = min(len, int(pc.window));
        base = int(pc.m * low);
        first = base + int(pc.n) + len - sl - (seq - gather_lens.v[low]);
    }
    for (uint j = lane; j < pc.width; j += 128u) {
        const int c = int(j);
        int v = -1;
        if (c < tl) v = topk.v[i * pc.topk_width + j] + base;
        else if (c < tl + sl) v = first + c - tl;
        indices.v[i * pc.width + j] = v;
    }
    if (lane == 0u) lens.v[i] = tl + sl;
}
