// Whether lib/cm_rows.glsl loads fragments as coopMatLoad does: rows of numbers that differ are
// stored both ways and loaded as either operand. dst[l] is how many components of lane l differ.
// Bindings: 0 dst u32 [SUBGROUP].
// Constants: 0 SUBGROUP, the workgroup; 1..3 M, N, K of a product; 4 ROWS.
// Shared memory: 4*R*(2*K + 16) bytes, R the larger of M and N.
// Features: cooperativeMatrix (f16), shaderFloat16, vulkanMemoryModel, subgroupSizeControl,
//   computeFullSubgroups.
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
layout(constant_id = 4) const uint ROWS = 0u;
#define CM_BF16_ROWS
#include "lib/cm_rows.glsl"
const uint SUBGROUP = gl_WorkGroupSize.x;
const uint LINES = 2u * (CM_M < CM_N ? CM_N : CM_M); // two matrices: rows of the second may begin at 8 of 16
const uint PITCH = CM_K / 8u + 1u;

shared uvec4 plain_s[LINES * PITCH]; // [LINES, K] elements
shared uvec4 rows_s[LINES * PITCH];  // the same, as lib/cm_rows.glsl has them

layout(std430, set = 0, binding = 0) writeonly buffer Dst { uint v[]; } dst;

// Eight numbers of a row, of which a fragment has no two that are equal.
uvec4 numbers(uint row, uint quad) {
    uvec4 w;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        const uint n = (row % 16u * CM_K + quad * 8u + 2u * i) % 256u;
        w[i] = cm_pack(vec4(float(n), float(n + 1u), 0.0, 0.0)).x;
    }
    return w;
}

void main() {
    const uint l = gl_SubgroupInvocationID;
    for (uint at = l; at < LINES * (CM_K / 8u); at += SUBGROUP) {
        const uint row = at / (CM_K / 8u), quad = at % (CM_K / 8u);
        const uvec4 w = numbers(row, quad);
        plain_s[row * PITCH + quad] = w;
        rows_s[row * PITCH + quad] = cm_half(row) == 0u ? w : w.zwxy;
    }
    barrier();
    coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_M, CM_K, gl_MatrixUseA> a, a_want;
    coopmat<CM_ELEMENT, gl_ScopeSubgroup, CM_K, CM_N, gl_MatrixUseB> b, b_want;
    uint differ = 0u;
    [[dont_unroll]] for (uint x = 0u; x < 2u; x++) {
        coopMatLoad(a_want, plain_s, x * CM_M * PITCH, PITCH, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(b_want, plain_s, x * CM_N * PITCH, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        CM_LOAD_ROWS(a, rows_s, x * CM_M, 0u, PITCH, l, gl_CooperativeMatrixLayoutRowMajor)
        CM_LOAD_ROWS(b, rows_s, x * CM_N, 0u, PITCH, l, gl_CooperativeMatrixLayoutColumnMajor)
        [[unroll]] for (uint i = 0u; i < a.length(); i++) differ += float(a[i]) == float(a_want[i]) ? 0u : 1u;
        [[unroll]] for (uint i = 0u; i < b.length(); i++) differ += float(b[i]) == float(b_want[i]) ? 0u : 1u;
    }
    dst.v[l] = differ;
}
