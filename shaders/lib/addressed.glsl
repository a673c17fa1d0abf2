// How a kernel reaches page pools, and other memory that may be large. With ADDRESSED, which a
// build or the kernel defines, a 64-bit address in the push constants leads to each, and their
// bindings are not there. Without it they are storage buffers, which limits each to the device's
// maxStorageBufferRange; the addresses are there but unused, as pairs of words.
#ifndef LIB_ADDRESSED_GLSL
#define LIB_ADDRESSED_GLSL
#ifdef ADDRESSED
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define ADDRESS uint64_t
#else
#define ADDRESS uvec2
#endif
#endif
