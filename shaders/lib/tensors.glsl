// Tensors of one element type, counted from their start in 32 bits. Declare the push
// block with the member
//
//   ADDRESS name_addr;
//
// and then, reached as lib/addressed.glsl says:
//
//   TENSOR(type, name, binding)        type name_at(uint i)
//   TENSOR_EARLY(type, name, binding)  the same, loaded where it is written; compilers move other
//                                      loads to where they are used
//   TENSOR_OUT(type, name, binding)    void name_put(uint i, type v)
//
// for the types int, uint, float, uvec2 and uvec4. A kernel that binds nothing begins to read
// memory earlier (docs/design/step.md): a descriptor is itself in memory, push constants are not.
#ifndef LIB_TENSORS_GLSL
#define LIB_TENSORS_GLSL

#include "addressed.glsl"

#ifdef ADDRESSED

#define TENSOR_TYPE(type, align) \
    layout(buffer_reference, std430, buffer_reference_align = align) readonly buffer Read_##type { type v[]; }; \
    layout(buffer_reference, std430, buffer_reference_align = align) volatile readonly buffer Early_##type { type v[]; }; \
    layout(buffer_reference, std430, buffer_reference_align = align) writeonly buffer Write_##type { type v[]; };
TENSOR_TYPE(int, 4)
TENSOR_TYPE(uint, 4)
TENSOR_TYPE(float, 4)
TENSOR_TYPE(uvec2, 8)
TENSOR_TYPE(uvec4, 16)

#define TENSOR(type, name, binding_number) type name##_at(uint i) { return Read_##type(pc.name##_addr).v[i]; }
#define TENSOR_EARLY(type, name, binding_number) type name##_at(uint i) { return Early_##type(pc.name##_addr).v[i]; }
#define TENSOR_OUT(type, name, binding_number) void name##_put(uint i, type x) { Write_##type(pc.name##_addr).v[i] = x; }

#else

#define TENSOR(type, name, binding_number) \
    layout(std430, set = 0, binding = binding_number) readonly buffer name##_block { type v[]; } name##_buf; \
    type name##_at(uint i) { return name##_buf.v[i]; }
#define TENSOR_EARLY(type, name, binding_number) \
    layout(std430, set = 0, binding = binding_number) volatile readonly buffer name##_block { type v[]; } name##_buf; \
    type name##_at(uint i) { return name##_buf.v[i]; }
#define TENSOR_OUT(type, name, binding_number) \
    layout(std430, set = 0, binding = binding_number) writeonly buffer name##_block { type v[]; } name##_buf; \
    void name##_put(uint i, type x) { name##_buf.v[i] = x; }

#endif
#endif
