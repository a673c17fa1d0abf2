// Large tensors as units of 16 bytes (8 bf16 values, or 16 codes of a byte), counted
// in 32 bits from their start. Declare the push block with the member
//
//   uint64_t name_addr;
//
// and then, reached as lib/addressed.glsl says:
//
// ROWS_RW(name, binding)   uvec4 name_load(uint unit), void name_store(uint unit, uvec4)
// ROWS(name, binding)      the first of them
// ROWS_OUT(name, binding)  the second of them
#ifndef LIB_ROWS_GLSL
#define LIB_ROWS_GLSL

#include "addressed.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) buffer RowsUnit { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer RowsRead { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer RowsWrite { uvec4 v; };

#define ROWS_LOAD(name, Unit) \
    uvec4 name##_load(uint unit) { \
        if (ADDRESSED) return Unit(pc.name##_addr + (uint64_t(unit) << 4)).v; \
        return name##_buf.v[unit]; \
    }
#define ROWS_STORE(name, Unit) \
    void name##_store(uint unit, uvec4 w) { \
        if (ADDRESSED) Unit(pc.name##_addr + (uint64_t(unit) << 4)).v = w; \
        else name##_buf.v[unit] = w; \
    }

#define ROWS_RW(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) buffer name##_block { uvec4 v[]; } name##_buf; \
    ROWS_LOAD(name, RowsUnit) ROWS_STORE(name, RowsUnit)
#define ROWS(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) readonly buffer name##_block { uvec4 v[]; } name##_buf; \
    ROWS_LOAD(name, RowsRead)
#define ROWS_OUT(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) writeonly buffer name##_block { uvec4 v[]; } name##_buf; \
    ROWS_STORE(name, RowsWrite)

#endif
