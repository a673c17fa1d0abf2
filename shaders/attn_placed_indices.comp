// Prompts in pieces: rows of the gathered workspace that each token of a piece attends, for a token
// at position p with tl = min((p+1) / ratio, k), sl = min(p+1, window), place = places[i]:
//   indices[i][j]    = place.entries + (place.how = 1 ? topk[i][j] : j)   for j < tl
//   indices[i][tl+j] = place.window + p-sl+1 + j                          for j < sl
//   lens[i] = tl + sl;  0 for padding (how = 0);  -1 for a token of another piece
// Without topk a token attends all entries: topk[i][j] = j. A negative topk gives -1. The row of a
// token of another piece, and what lies beyond lens, is not written.
// Bindings: 0 topk [T,k] i32 (may be absent); 1 positions [T] i32; 2 places [T,4] i32: piece,
//   entries, window, how; 3 indices [T,width] i32; 4 lens [T] i32.
// Workgroup: token x, 128 invocations.  Shared memory: none.  Features: none.
#version 460

layout(local_size_x = 128) in;

layout(std430, set = 0, binding = 0) readonly buffer Topk { int v[]; } topk;
layout(std430, set = 0, binding = 1) readonly buffer Positions { int v[]; } positions;
layout(std430, set = 0, binding = 2) readonly buffer Places { ivec4 v[]; } places;
layout(std430, set = 0, binding = 3) writeonly buffer Indices { int v[]; } indices;
layout(std430, set = 0, binding = 4) writeonly buffer Lens { int v[]; } lens;

const int PADDING = 0, WHOLE = 1; // of place.how; 2: the token's own entries, in the order of its list
const uint HAS_TOPK = 1u;

layout(push_constant) uniform Push {
    uint piece;
    uint k;
    uint window;
    uint ratio; // 0: no entries
    uint width;
    uint flags;
} pc;

void main() {
    const uint i = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
    const ivec4 place = places.v[i];
    if (place.x != int(pc.piece)) {
        if (lane == 0u) lens.v[i] = -1;
        return;
    }
    int tl = 0, sl = 0;
    const int end = max(positions.v[i], -1) + 1;
    if (place.w != PADDING) {
        tl = pc.ratio == 0u ? 0 : min(end / int(pc.ratio), int(pc.k));
        sl = min(end, int(pc.window));
    }
    const bool listed = (pc.flags & HAS_TOPK) != 0u && place.w == WHOLE;
    for (int j = int(lane); j < min(tl + sl, int(pc.width)); j += 128) {
        int v = place.z + end - sl + j - tl;
        if (j < tl) {
            const int e = listed ? topk.v[i * pc.k + uint(j)] : j;
            v = e < 0 ? -1 : place.y + e;
        }
        indices.v[i * pc.width + uint(j)] = v;
    }
    if (lane == 0u) lens.v[i] = tl + sl;
}
