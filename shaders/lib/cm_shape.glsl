// Invocations of a workgroup and of a subgroup, and the shape of a matrix product: constants 2 to
// 6.
#ifndef LIB_CM_SHAPE_GLSL
#define LIB_CM_SHAPE_GLSL

layout(local_size_x = 128, local_size_x_id = 2) in;
const uint THREADS = gl_WorkGroupSize.x;
layout(constant_id = 3) const uint SUBGROUP = 32u;
layout(constant_id = 4) const uint CM_M = 16u;
layout(constant_id = 5) const uint CM_N = 16u;
layout(constant_id = 6) const uint CM_K = 16u;

#endif
