#version 460
// Peak of the matrix units at subgroup scope: R += A*B with f32 accumulators held
// in registers, 8 independent chains per subgroup, rounds times.
// FLOP per subgroup = 2 * M*N*K * 8 * rounds.
//   0 seed [256] u32: random 16-bit values in +-1, two a word (zeros would run
//     faster than real data)    1 out [subgroups * M*N] f32
// One workgroup is local_size_x_id / subgroup size subgroups. Shared memory: none.
// Features: cooperativeMatrix (_cm f16, _cmb bf16 operands), shaderFloat16, vulkanMemoryModel.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#ifdef CM_BF16
#extension GL_EXT_bfloat16 : require
#define ET bfloat16_t
#else
#define ET float16_t
#endif
layout(local_size_x_id = 3) in;
layout(constant_id = 0) const uint TM = 16;
layout(constant_id = 1) const uint TN = 16;
layout(constant_id = 2) const uint TK = 16;
layout(set = 0, binding = 0, std430) restrict readonly buffer Seed { uint seed[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer Out { float sum[]; };
layout(push_constant) uniform Push { uint rounds; } pc;

void main() {
    coopmat<ET, gl_ScopeSubgroup, TM, TK, gl_MatrixUseA> a;
    coopmat<ET, gl_ScopeSubgroup, TK, TN, gl_MatrixUseB> b;
    coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> acc[8];
    coopMatLoad(a, seed, 0, TK / 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, seed, 0, TN / 2, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (int i = 0; i < 8; i++) acc[i] = coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(float(i));
    for (uint r = 0; r < pc.rounds; r++)
        [[unroll]] for (int i = 0; i < 8; i++) acc[i] = coopMatMulAdd(a, b, acc[i]);
    [[unroll]] for (int i = 1; i < 8; i++) acc[0] += acc[i];
    uint group = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
    coopMatStore(acc[0], sum, group * TM * TN, TN, gl_CooperativeMatrixLayoutRowMajor);
}
