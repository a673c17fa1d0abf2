// Two-pass decode: where in the decoded workspace the entries of a token lie, packed to the front.
// With cl = clamp(comp_lens[t], 0, comp_width), wl = clamp(win_lens[t], 0, win_width):
//   packed[t][j] = t*comp_width + j for j < cl
//   packed[t][cl+j] = win_row0 + t*win_width + j for j < wl
//   rest -1;  lens[t] = cl + wl
// Bindings: 0 comp_indices [T,comp_width] i32; 1 comp_lens [T] i32; 2 win_indices [T,win_width]
//   i32; 3 win_lens [T] i32; 4 packed [T,width] i32; 5 lens [T] i32. A source index that is
//   negative or past its pool (comp_slots, win_slots) gives -1. With KEEP_MASKED its row is
//   addressed nevertheless: a row of zeros, which takes part with score 0, as in the original XPU
//   path.
// Workgroup: token x, 128 invocations.  Shared memory: none.  Features: none.
#version 460

layout(local_size_x = 128) in;

layout(std430, set = 0, binding = 0) readonly buffer CompIndices { int v[]; } comp_indices;
layout(std430, set = 0, binding = 1) readonly buffer CompLens { int v[]; } comp_lens;
layout(std430, set = 0, binding = 2) readonly buffer WinIndices { int v[]; } win_indices;
layout(std430, set = 0, binding = 3) readonly buffer WinLens { int v[]; } win_lens;
layout(std430, set = 0, binding = 4) writeonly buffer Packed { int v[]; } packed_;
layout(std430, set = 0, binding = 5) writeonly buffer Lens { int v[]; } lens;

const uint HAS_COMP = 1u, KEEP_MASKED = 2u;

layout(push_constant) uniform Push {
    uint comp_width;
    uint win_width;
    uint win_row0; // first workspace row of the window set
    uint width;
    uint comp_slots;
    uint win_slots;
    uint flags;
} pc;

void main() {
    const uint t = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
    const uint cl = (pc.flags & HAS_COMP) != 0u ? uint(clamp(comp_lens.v[t], 0, int(pc.comp_width))) : 0u;
    const uint wl = uint(clamp(win_lens.v[t], 0, int(pc.win_width)));
    const bool keep = (pc.flags & KEEP_MASKED) != 0u;
    for (uint j = lane; j < pc.width; j += 128u) {
        int v = -1;
        if (j < cl) {
            const uint row = t * pc.comp_width + j;
            if (keep || uint(comp_indices.v[row]) < pc.comp_slots) v = int(row);
        } else if (j < cl + wl) {
            const uint row = t * pc.win_width + j - cl;
            if (keep || uint(win_indices.v[row]) < pc.win_slots) v = int(pc.win_row0 + row);
        }
        packed_.v[t * pc.width + j] = v;
    }
    if (lane == 0u) lens.v[t] = int(cl + wl);
}
