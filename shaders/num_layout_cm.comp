// Which component of which invocation holds which element of a cooperative matrix. A [M,K], B [K,N]
// and C [M,N] are loaded from their own indices row*columns + column. The value of component i of
// invocation l goes to
//   dst[first + i*SUBGROUP + l],  first = 0 for A, M*K for B, M*K + K*N for C
// Three more words follow: how many components of A, B and C an invocation has.
// Bindings: 0 dst u32 [M*K + K*N + M*N + 3].
// Constants: 0 SUBGROUP, the workgroup; 1..3 M, N, K of a product.
// Shared memory: 4*(M*K + K*N + M*N) bytes at most.
// Features: cooperativeMatrix (_cm f16, _cmb bf16 operands), shaderFloat16, vulkanMemoryModel,
//   subgroupSizeControl, computeFullSubgroups.
// The indices mean something only where every element is in one component, so that there are
// M*K/SUBGROUP, K*N/SUBGROUP and M*N/SUBGROUP of them (some devices hold operands twice), and where
// the element type can hold every index: f16 up to 2048 elements, bf16 256.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "lib/cm_element.glsl"

layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint CM_M = 16u;
layout(constant_id = 2) const uint CM_N = 16u;
layout(constant_id = 3) const uint CM_K = 16u;
const uint SUBGROUP = gl_WorkGroupSize.x;

shared CM_ELEMENT a_s[CM_M * CM_K];
shared CM_ELEMENT b_s[CM_K * CM_N];
shared float c_s[CM_M * CM_N];

layout(std430, set = 0, binding = 0) writeonly buffer Dst { uint v[]; } dst;

void main() {
    const uint l = gl_SubgroupInvocationID;
    for (uint i = l; i < CM_M * CM_K; i += SUBGROUP) a_s[i] = CM_ELEMENT(float(i));
    for (uint i = l; i < CM_K * CM_N; i += SUBGROUP) b_s[i] = CM_ELEMENT(float(i));
    for (uint i = l; i < CM_M * CM_N; i += SUBGROUP) c_s[i] = float(i);
    barrier();
    coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA> a;
    coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB> b;
    coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator> c;
    coopMatLoad(a, a_s, 0u, CM_K, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, b_s, 0u, CM_N, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(c, c_s, 0u, CM_N, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint i = 0u; i < CM_M * CM_K / SUBGROUP; i++) dst.v[i * SUBGROUP + l] = uint(float(a[i]));
    [[unroll]] for (uint i = 0u; i < CM_K * CM_N / SUBGROUP; i++) dst.v[CM_M * CM_K + i * SUBGROUP + l] = uint(float(b[i]));
    [[unroll]] for (uint i = 0u; i < CM_M * CM_N / SUBGROUP; i++) dst.v[CM_M * CM_K + CM_K * CM_N + i * SUBGROUP + l] = uint(c[i]);
    const uint lengths = CM_M * CM_K + CM_K * CM_N + CM_M * CM_N;
    if (l == 0u) {
        dst.v[lengths] = uint(a.length());
        dst.v[lengths + 1u] = uint(b.length());
        dst.v[lengths + 2u] = uint(c.length());
    }
}
