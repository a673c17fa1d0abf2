// Whether matrices of E4M3 are multiplied exactly: 256*256 + 1*2^-7, which takes all bits of an f32
// and a subnormal code. dst[l] is how many components of lane l are something else.
// Bindings: 0 dst u32 [SUBGROUP].
// Constants: 0 SUBGROUP, the workgroup; 1..3 M, N, K of a product.
// Shared memory: (M + N)*K bytes.
// Features: cooperativeMatrix (e4m3), shaderFloat8, vulkanMemoryModel, subgroupSizeControl,
//   computeFullSubgroups.
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_float_e4m3 : require

layout(local_size_x = 32, local_size_x_id = 0) in;
layout(constant_id = 1) const uint CM_M = 16u;
layout(constant_id = 2) const uint CM_N = 16u;
layout(constant_id = 3) const uint CM_K = 16u;
const uint SUBGROUP = gl_WorkGroupSize.x;
const uint QUADS = CM_K / 16u; // of a row, 16 codes each

shared uvec4 a_s[CM_M * QUADS]; // [M, K]: 256, 1, 0, ..
shared uvec4 b_s[CM_N * QUADS]; // [N, K]: 256, 2^-7, 0, ..

layout(std430, set = 0, binding = 0) writeonly buffer Dst { uint v[]; } dst;

void main() {
    const uint l = gl_SubgroupInvocationID;
    for (uint i = l; i < CM_M * QUADS; i += SUBGROUP) a_s[i] = uvec4(i % QUADS == 0u ? 0x3878u : 0u, 0u, 0u, 0u);
    for (uint i = l; i < CM_N * QUADS; i += SUBGROUP) b_s[i] = uvec4(i % QUADS == 0u ? 0x0478u : 0u, 0u, 0u, 0u);
    barrier();
    coopmat<floate4m3_t, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA> a;
    coopmat<floate4m3_t, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB> b;
    coopMatLoad(a, a_s, 0u, QUADS, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, b_s, 0u, QUADS, gl_CooperativeMatrixLayoutColumnMajor);
    const coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator> zero =
        coopmat<float, gl_ScopeSubgroup, CM_M, CM_N, gl_MatrixUseAccumulator>(0.0), c = coopMatMulAdd(a, b, zero);
    uint differ = 0u;
    [[unroll]] for (uint i = 0u; i < c.length(); i++) differ += floatBitsToUint(c[i]) == 0x47800001u ? 0u : 1u;
    dst.v[l] = differ;
}
