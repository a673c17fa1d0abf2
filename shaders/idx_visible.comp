// Visible entries: lens[t] = min((p + 1) / RATIO, limit) for a valid token t at position
//   p = positions[t] >= 0, else 0.
// Bindings:  0 positions [T] i32   1 is_valid [>= T] u8, as words (read when has_valid)
//            2 lens [T] i32
// Workgroup: 128 tokens.  Constants: 0 RATIO, tokens of a compressed entry.  Shared memory: 0.
// Features:  none.
#version 460
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint RATIO = 4;

layout(std430, set = 0, binding = 0) readonly buffer Positions { int positions[]; };
layout(std430, set = 0, binding = 1) readonly buffer IsValid { uint is_valid[]; };
layout(std430, set = 0, binding = 2) writeonly buffer Lens { int lens[]; };

layout(push_constant) uniform Push {
    uint tokens; // T
    uint limit;
    uint has_valid;
} pc;

void main() {
    const uint t = gl_GlobalInvocationID.x;
    if (t >= pc.tokens) return;
    const int p = positions[t];
    bool valid = p >= 0;
    if (pc.has_valid != 0u) valid = valid && ((is_valid[t >> 2] >> (8u * (t & 3u))) & 0xFFu) != 0u;
    lens[t] = valid ? int(min((uint(p) + 1u) / RATIO, pc.limit)) : 0;
}
