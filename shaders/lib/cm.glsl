// The language of kernels with cooperative matrices, and the types of a product's operands and
// sums: M x K elements times K x N are M x N numbers. Include it before anything else;
// lib/cm_element.glsl says what CM_ELEMENT is.
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#define CM_A coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA>
#define CM_B coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB>
#define CM_C coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator>
