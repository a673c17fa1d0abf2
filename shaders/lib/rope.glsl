// Rotary position embedding of interleaved pairs: pair i (0..31) of the last 64 values of
// a vector, e = value D-64+2i and o = value D-64+2i+1, turns by the angle of its position:
//
//   forward  e' = e*cos - o*sin   o' = o*cos + e*sin
//   inverse  e' = e*cos + o*sin   o' = o*cos - e*sin
//
// in binary32, each product rounded, then the sum: "precise" keeps a compiler from fusing
// them, which would move a bf16 result by a step in rare ties.
//
// A table row of position p holds cos[0..31], then sin[0..31], as f32 or as bf16:
//
//   ROPE_TABLE(name, binding)  declares the table [rows, 64] and
//     vec2 name_cos_sin(uint row, uint i, bool is_bf16)            (cos, sin) of pair i
//     vec4 name_cos_sin2(uint row, uint i, bool is_bf16)           of pairs i and i+1, i even:
//                                                                  (cos, sin, cos, sin)
//
//   ROPE_TABLE4(name)          for such a table as a tensor of uvec4 of lib/tensors.glsl, declares
//     void name_cos_sin4(uint row, uint i, bool is_bf16, out vec4 near, out vec4 far)
//                                of pairs i to i+3, i a multiple of 4, the first two in near
//
// The caller clamps row to the table. Pass a constant for is_bf16.
#ifndef LIB_ROPE_GLSL
#define LIB_ROPE_GLSL

const uint ROPE_DIM = 64u;   // values that turn
const uint ROPE_PAIRS = 32u; // pairs of them, and cosines of a table row

// rope_rotate: the pair (e, o) forward by (cos, sin).
vec2 rope_rotate(vec2 pair, vec2 cos_sin) {
    precise float ec = pair.x * cos_sin.x;
    precise float os = pair.y * cos_sin.y;
    precise float oc = pair.y * cos_sin.x;
    precise float es = pair.x * cos_sin.y;
    precise vec2 r = vec2(ec - os, oc + es);
    return r;
}

// rope_unrotate: the inverse.
vec2 rope_unrotate(vec2 pair, vec2 cos_sin) { return rope_rotate(pair, vec2(cos_sin.x, -cos_sin.y)); }

#define ROPE_TABLE(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) readonly buffer name##_block { uvec2 v[]; } name##_buf; \
    vec4 name##_cos_sin2(uint row, uint i, bool is_bf16) { \
        if (is_bf16) { \
            uint at = row * ROPE_PAIRS + i / 2u; \
            uint c = name##_buf.v[at >> 1][at & 1u], s = name##_buf.v[(at + 16u) >> 1][at & 1u]; \
            return uintBitsToFloat(uvec4(c << 16, s << 16, c & 0xFFFF0000u, s & 0xFFFF0000u)); \
        } \
        uint at = row * ROPE_PAIRS + i / 2u; \
        uvec2 c = name##_buf.v[at], s = name##_buf.v[at + 16u]; \
        return uintBitsToFloat(uvec4(c.x, s.x, c.y, s.y)); \
    } \
    vec2 name##_cos_sin(uint row, uint i, bool is_bf16) { \
        vec4 both = name##_cos_sin2(row, i & ~1u, is_bf16); \
        return (i & 1u) == 0u ? both.xy : both.zw; \
    }

#define ROPE_TABLE4(name) \
    void name##_cos_sin4(uint row, uint i, bool is_bf16, out vec4 near, out vec4 far) { \
        uvec4 c, s; \
        if (is_bf16) { \
            uint at = row * (ROPE_DIM / 8u) + i / 8u; \
            c = name##_at(at); \
            s = name##_at(at + ROPE_DIM / 16u); \
            c.xy = (i & 4u) == 0u ? c.xy : c.zw; \
            s.xy = (i & 4u) == 0u ? s.xy : s.zw; \
            c = uvec4(c.x << 16, c.x & 0xFFFF0000u, c.y << 16, c.y & 0xFFFF0000u); \
            s = uvec4(s.x << 16, s.x & 0xFFFF0000u, s.y << 16, s.y & 0xFFFF0000u); \
        } else { \
            uint at = row * (ROPE_DIM / 4u) + i / 4u; \
            c = name##_at(at); \
            s = name##_at(at + ROPE_DIM / 8u); \
        } \
        near = uintBitsToFloat(uvec4(c.x, s.x, c.y, s.y)); \
        far = uintBitsToFloat(uvec4(c.z, s.z, c.w, s.w)); \
    }

#endif
