// Moves the bits of MXFP4's codes to where products decode them with fewest instructions, in place.
// A byte has two codes of a sign and three bits, a in front of b in the row:
//   sb b2 b1 b0 sa a2 a1 a0 becomes sa b2 b1 b0 a2 a1 a0 sb
// Bindings: 0 codes, [count] quads of 16 bytes.
// Workgroup: every stride-th 256 quads.
// Shared memory: none.  Features: none.
#version 460
layout(local_size_x = 256) in;
layout(push_constant) uniform Push {
    uint count, stride; // quads, workgroups
} pc;
layout(std430, set = 0, binding = 0) buffer Codes { uvec4 v[]; } codes;

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < pc.count; i += pc.stride * 256u) {
        const uvec4 w = codes.v[i];
        codes.v[i] = (w & 0x70707070u) | ((w & 0x07070707u) << 1) | ((w & 0x08080808u) << 4) | ((w >> 7) & 0x01010101u);
    }
}
