// A pool of compressor state: slot t of a page holds C f32 kv values and then C f32 scores,
// from byte t*8*C of the page. Everything is 16-byte aligned, and places are counted in
// units of 16 bytes from the start of the pool, in 32 bits (pools up to 64 GiB).
//
// Declare the push block with the members
//
//   ADDRESS name_addr;  uint name_units;   // 16-byte units per page
//
// and then, reached as lib/addressed.glsl says:
//
// STATE_POOL(name, binding)       vec4 name_load(uint unit), float name_load1(uint unit, uint k),
//                                 number k (0..3) of the unit
// STATE_POOL_BOTH(name, binding)  the same, and void name_store(uint unit, vec4): nothing is read
//                                 that the same launch stores
#ifndef LIB_STATE_PAGE_GLSL
#define LIB_STATE_PAGE_GLSL

#include "addressed.glsl"

const uint STATE_NONE = 0xFFFFFFFFu; // a unit that no pool has

#ifdef ADDRESSED

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer StateRead { vec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer StateRead1 { float v; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer StateWrite { vec4 v; };

#define STATE_POOL(name, binding_number) \
    vec4 name##_load(uint unit) { return StateRead(pc.name##_addr + (uint64_t(unit) << 4)).v; } \
    float name##_load1(uint unit, uint k) { return StateRead1(pc.name##_addr + (uint64_t(unit) << 4) + 4u * k).v; }
#define STATE_POOL_BOTH(name, binding_number) STATE_POOL(name, binding_number) \
    void name##_store(uint unit, vec4 x) { StateWrite(pc.name##_addr + (uint64_t(unit) << 4)).v = x; }

#else

#define STATE_LOADS(name) \
    vec4 name##_load(uint unit) { return name##_buf.v[unit]; } \
    float name##_load1(uint unit, uint k) { return name##_buf.v[unit][k]; }
#define STATE_POOL(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) readonly buffer name##_block { vec4 v[]; } name##_buf; \
    STATE_LOADS(name)
#define STATE_POOL_BOTH(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) buffer name##_block { vec4 v[]; } name##_buf; \
    STATE_LOADS(name) \
    void name##_store(uint unit, vec4 x) { name##_buf.v[unit] = x; }

#endif
#endif
