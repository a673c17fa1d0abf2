// Sums over the invocations of a workgroup, for the selections of one launch. Declare before the
// constants SUBGROUP and TEAMS, subgroups of a workgroup, and shared uint sum_s[TEAMS].
#ifndef LIB_TOPK_SCAN_GLSL
#define LIB_TOPK_SCAN_GLSL
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

// scan: sums over the invocations before this one, and over all. A barrier has to follow before the
// next.
uvec2 scan(uint x) {
    uint sum = x;
    for (uint d = 1u; d < SUBGROUP; d *= 2u) {
        const uint y = subgroupShuffle(sum, gl_SubgroupInvocationID - d);
        sum += gl_SubgroupInvocationID >= d ? y : 0u;
    }
    if (gl_SubgroupInvocationID == SUBGROUP - 1u) sum_s[gl_SubgroupID] = sum;
    barrier();
    uint before = sum - x, all = 0u;
    [[dont_unroll]] for (uint at = 0u; at < TEAMS; at += SUBGROUP) {
        const uint team = at + gl_SubgroupInvocationID;
        uint v = team < TEAMS ? sum_s[min(team, TEAMS - 1u)] : 0u, below = team < gl_SubgroupID ? v : 0u;
        for (uint d = 1u; d < SUBGROUP; d *= 2u) {
            v += subgroupShuffleXor(v, d);
            below += subgroupShuffleXor(below, d);
        }
        before += below;
        all += v;
    }
    return uvec2(before, all);
}

#endif
