// Sums and maxima over invocations that lie 2^n apart in a workgroup of 128. Numbers pass inside
// subgroups and, where these are smaller, through shared memory: the same bits for every size.
// Declare the specialisation constant SUBGROUP before; gl_SubgroupSize is it, and subgroups are
// full. All invocations call these together.
//
// Features: subgroupShuffle, and subgroupSizeControl with computeFullSubgroups. None without
// LANES_PASS, which a build defines: all numbers pass through shared memory then.
#ifndef LIB_LANES_GLSL
#define LIB_LANES_GLSL

// lanes_me: the number of this invocation, by which all others know it here.
#ifdef LANES_PASS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
shared uint lanes_of[SUBGROUP < 32u ? 128u : 1u];
uint lanes_me() { return gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID; }
#else
shared uint lanes_of[128];
uint lanes_me() { return gl_LocalInvocationID.x; }
#endif

// lanes_pass: what invocation me ^ bit has for v; bit is below 32.
uint lanes_pass(uint v, uint bit) {
#ifdef LANES_PASS
    if (bit < SUBGROUP) return subgroupShuffleXor(v, bit);
#endif
    lanes_of[lanes_me() % 128u] = v;
    barrier();
    const uint other = lanes_of[(lanes_me() ^ bit) % 128u];
    barrier();
    return other;
}

float lanes_pass(float v, uint bit) { return uintBitsToFloat(lanes_pass(floatBitsToUint(v), bit)); }

// lanes_sum32: over 32 invocations, the first of them a multiple of 32, in the order of rms_sum32.
float lanes_sum32(float v) {
    precise float a = v + lanes_pass(v, 4u);
    precise float b = a + lanes_pass(a, 8u);
    precise float c = b + lanes_pass(b, 16u);
    precise float d = c + lanes_pass(c, 1u);
    precise float sum = d + lanes_pass(d, 2u);
    return sum;
}

#endif
