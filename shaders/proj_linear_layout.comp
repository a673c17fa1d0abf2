// Where the components of cooperative matrices lie: those of an M x K and a K x N matrix of which each element is its own place.
// bindings: 0 place [2 + SUBGROUP*(M*K + K*N)/SUBGROUP] f32: the numbers of components of a lane of either; then lane by lane row*K + k
//   of the first's and column*K + k of the second's.
// One workgroup: one subgroup. Constants: 0 SUBGROUP, 1..3 M, N, K, with at most 256 elements of each.
// Shared memory: 512 B.
// Features: cooperativeMatrix (f16; with CM_BF16 bf16), shaderFloat16, vulkanMemoryModel, subgroupSizeControl, computeFullSubgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "lib/cm_element.glsl"

layout(local_size_x = 32, local_size_x_id = 0) in;
const uint SUBGROUP = gl_WorkGroupSize.x;
layout(constant_id = 1) const uint CM_M = 16u;
layout(constant_id = 2) const uint CM_N = 16u;
layout(constant_id = 3) const uint CM_K = 16u;

layout(std430, set = 0, binding = 0) writeonly buffer Place { float v[]; } place;

shared uvec4 tile_s[32];

void main() {
    const uint lane = gl_SubgroupInvocationID;
    for (uint q = gl_LocalInvocationIndex; q < 32u; q += SUBGROUP) {
        uvec4 v;
        [[unroll]] for (uint e = 0u; e < 4u; e++) {
            const vec2 i = vec2(q * 8u + e * 2u) + vec2(0.0, 1.0);
#ifdef CM_BF16
            v[e] = bf16_pack2(i.x, i.y);
#else
            v[e] = packFloat2x16(f16vec2(i));
#endif
        }
        tile_s[q] = v;
    }
    barrier();
    coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA> a;
    coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB> b;
    coopMatLoad(a, tile_s, 0u, CM_K / 8u, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, tile_s, 0u, CM_K / 8u, gl_CooperativeMatrixLayoutColumnMajor);
    const uint a_each = CM_M * CM_K / SUBGROUP, b_each = CM_K * CM_N / SUBGROUP; // a device may hold elements more than once
    if (lane == 0u) {
        place.v[0] = float(a.length());
        place.v[1] = float(b.length());
    }
    [[unroll]] for (uint j = 0u; j < a_each; j++) place.v[2u + lane * a_each + j] = float(a[j]);
    [[unroll]] for (uint j = 0u; j < b_each; j++) place.v[2u + CM_M * CM_K + lane * b_each + j] = float(b[j]);
}
