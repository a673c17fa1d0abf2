// Large tensors as units of 16 bytes (8 bf16 values, or 16 codes of a byte), counted
// in 32 bits from their start. Declare the push block with the member
//
//   ADDRESS name_addr;
//
// and then, reached as lib/addressed.glsl says:
//
// ROWS_RW(name, binding)   uvec4 name_load(uint unit), void name_store(uint unit, uvec4)
// ROWS(name, binding)      the first of them
// ROWS_OUT(name, binding)  the second of them
#ifndef LIB_ROWS_GLSL
#define LIB_ROWS_GLSL

#include "addressed.glsl"

#ifdef ADDRESSED

layout(buffer_reference, std430, buffer_reference_align = 16) buffer RowsUnit { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer RowsRead { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer RowsWrite { uvec4 v; };

#define ROWS_RW(name, binding_number) \
    uvec4 name##_load(uint unit) { return RowsUnit(pc.name##_addr + (uint64_t(unit) << 4)).v; } \
    void name##_store(uint unit, uvec4 w) { RowsUnit(pc.name##_addr + (uint64_t(unit) << 4)).v = w; }
#define ROWS(name, binding_number) \
    uvec4 name##_load(uint unit) { return RowsRead(pc.name##_addr + (uint64_t(unit) << 4)).v; }
#define ROWS_OUT(name, binding_number) \
    void name##_store(uint unit, uvec4 w) { RowsWrite(pc.name##_addr + (uint64_t(unit) << 4)).v = w; }

#else

#define ROWS_RW(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) buffer name##_block { uvec4 v[]; } name##_buf; \
    uvec4 name##_load(uint unit) { return name##_buf.v[unit]; } \
    void name##_store(uint unit, uvec4 w) { name##_buf.v[unit] = w; }
#define ROWS(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) readonly buffer name##_block { uvec4 v[]; } name##_buf; \
    uvec4 name##_load(uint unit) { return name##_buf.v[unit]; }
#define ROWS_OUT(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) writeonly buffer name##_block { uvec4 v[]; } name##_buf; \
    void name##_store(uint unit, uvec4 w) { name##_buf.v[unit] = w; }

#endif
#endif
