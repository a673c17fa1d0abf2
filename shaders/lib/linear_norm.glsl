// A norm of what a linear layer gives, by the same launch: the first 8*NORM_QUADS columns of y, of
// bf16, go through the norm of proj_qkv_norm.comp to normed [T, 8*NORM_QUADS] bf16 at normed_addr,
// too, with weights at norm_addr, if that is not 0. The workgroup that comes last of those with
// such rows and the same tokens does it, as it knows by a counter, at arrived_addr for each
// gl_WorkGroupID.y, which is 0 between launches. Whichever it is, it computes the same.
//
// Include lib/linear.glsl before, and define NORM_SCOPE, a scope of all
// workgroups that the kernel's memory model has.
#ifndef LIB_LINEAR_NORM_GLSL
#define LIB_LINEAR_NORM_GLSL
#extension GL_KHR_memory_scope_semantics : require

layout(buffer_reference, std430, buffer_reference_align = 4) coherent writeonly buffer NormPut1 { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 8) coherent writeonly buffer NormPut2 { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent readonly buffer NormSeen { uvec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer NormArrived { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer NormResult { uvec4 v; };

shared uint norm_last;

// rehearses: a workgroup behind the last row goes through the norm while others multiply, with
// weights in place of numbers, and stores nothing. So neither code nor weights have to come from
// memory for the workgroup that the others wait for. A step with a kernel between layers takes 2 %
// longer without it, for 1 and for 8 tokens.
bool rehearses(uint row) { return NORM != 0u && row >= pc.n; }

// norm_address: of a number of y.
uint64_t norm_address(uint token, uint column) { return pc.y_addr + (token * pc.y_stride + pc.y_column + column) * 2u; }

// norm_number: the same, or of a weight.
uint64_t norm_number(uint token, uint column, bool rehearsed) {
    return rehearsed ? pc.norm_addr + column * 2u : norm_address(token, column);
}

// norm_weights: 8 of them as they are stored, of f32 four in each of g and h, of bf16 all in g;
// norm_gains: as f32.
void norm_weights(uint u, out uvec4 g, out uvec4 h) {
    g = LinearRead4(pc.norm_addr + (NORM == 2u ? 2u * u : u) * 16u).v;
    h = NORM == 2u ? LinearRead4(pc.norm_addr + (2u * u + 1u) * 16u).v : uvec4(0u);
}
void norm_gains(uvec4 g, uvec4 h, out vec4 a, out vec4 b) {
    a = NORM == 2u ? uintBitsToFloat(g) : vec4(bf16_unpack2(g.x), bf16_unpack2(g.y));
    b = NORM == 2u ? uintBitsToFloat(h) : vec4(bf16_unpack2(g.z), bf16_unpack2(g.w));
}

// norm_mine: this workgroup, with rows from row on, is the last of those with as many rows each and
// has to norm. The same for all invocations, which have stored their sums.
bool norm_mine(uint row, uint rows) {
    if (NORM == 0u || pc.norm_addr == uint64_t(0) || row >= NORM_QUADS * 8u) return false;
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    if (gl_LocalInvocationIndex == 0u) {
        const uint64_t arrived = pc.arrived_addr + gl_WorkGroupID.y * 4u;
        const uint before = atomicAdd(NormArrived(arrived).v, 1u, NORM_SCOPE, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        norm_last = (before + 1u) * rows >= NORM_QUADS * 8u ? 1u : 0u;
        if (norm_last != 0u) NormArrived(arrived).v = 0u; // for the next launch
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    return norm_last != 0u;
}

#endif
