// ADDRESSED, a choice: how a kernel reaches page pools, and other memory that may be large. Without
// it they are storage buffers, which limits each to the device's maxStorageBufferRange, and their
// addresses in the push constants are there but unused. With it a 64-bit address in the push
// constants leads to each, and their bindings are not there.
#ifndef LIB_ADDRESSED_GLSL
#define LIB_ADDRESSED_GLSL
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(constant_id = 90) const bool ADDRESSED = false;

#endif
