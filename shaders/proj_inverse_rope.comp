// Inverse rotation of the attention's output, in place: for token t at position p and head h, with
// e, o = o[t,h,448+2i], o[t,h,449+2i] and c, s the cosine and sine of pair i = 0..31 at p, in f32
//   e' = bf16(e*c + o*s),  o' = bf16(o*c - e*s)
// Shared memory: 0 B.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64.
// Bindings: 0 positions [T] i32, 1 table [rows,64] f32 (lib/rope.glsl), 2 o [T,H,512] bf16, of
//   which the last 64 columns are read and written; o with ADDRESSED by address.
// Workgroup: 16 heads (x) of token y, 8 invocations each, which have 4 pairs.
// Constants: none.
// A position outside the table counts as its nearest row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/rows.glsl"
#include "lib/rope_bf16.glsl"

const uint HEADS = 16u; // of a workgroup
const uint LANES = 8u;  // of a head
const uint UNITS = 64u; // of 8 values in a head
layout(local_size_x = 128) in;

layout(std430, set = 0, binding = 0) readonly buffer Positions { int positions[]; };
ROPE_TABLE(table, 1)

layout(push_constant) uniform Push {
    ADDRESS o_addr;
    uint heads;      // H
    uint table_rows;
} pc;
ROWS_RW(o, 2)

void main() {
    const uint lane = gl_LocalInvocationID.x % LANES, t = gl_WorkGroupID.y;
    const uint head = gl_WorkGroupID.x * HEADS + gl_LocalInvocationID.x / LANES;
    if (head >= pc.heads) return;
    const uint row = uint(clamp(positions[t], 0, int(pc.table_rows) - 1));
    // Backwards is forwards by the opposite angle; a changed sign rounds nothing.
    const vec4 back = vec4(1.0, -1.0, 1.0, -1.0);
    const vec4 near = table_cos_sin2(row, lane * 4u, false) * back, far = table_cos_sin2(row, lane * 4u + 2u, false) * back;
    const uint unit = (t * pc.heads + head) * UNITS + UNITS - LANES + lane;
    const uvec4 w = o_load(unit);
    if (rope_bf16_usual(w)) {
        o_store(unit, uvec4(rope_bf16_plain(w.x, near.xy), rope_bf16_plain(w.y, near.zw),
                            rope_bf16_plain(w.z, far.xy), rope_bf16_plain(w.w, far.zw)));
        return;
    }
    o_store(unit, rope_bf16_words(w, near, far));
}
