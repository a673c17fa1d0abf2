// Activations in eights, for kernels that keep x decoded in shared memory: bf16, E4M3 or, of these
// kernels only, E2M1 with scales x_scale [G,T,K/16] E4M3. Include linear_f32.glsl first.
#ifndef LIB_LINEAR_ACT_GLSL
#define LIB_LINEAR_ACT_GLSL

// What decoded numbers of x are to be multiplied by, their scales aside.
const float X_UNSCALE = ACT == ACT_NVFP4 ? NVFP4_UNIT : ACT_UNSCALE;

// x_eight: the quad that has the numbers of eight `at` of x; of E2M1 their word is the first.
uvec4 x_eight(uint at) {
    if (ACT == ACT_BF16) return x_quad(at);
    if (ACT != ACT_NVFP4) return x_quad(at >> 1);
    const uvec4 q = x_quad(at >> 2);
    return uvec4((at & 2u) == 0u ? ((at & 1u) == 0u ? q.x : q.y) : ((at & 1u) == 0u ? q.z : q.w), 0u, 0u, 0u);
}

// x_eight_scale: the f32 bits of the scale of a token's numbers at k.
uint x_eight_scale(uint token, uint group, uint k) {
    if (ACT == ACT_BF16) return 0u;
    if (ACT != ACT_NVFP4) return x_block_bits(token, group, k);
    const uint i = x_row(token, group) * (pc.k / 16u) + k / 16u;
    return floatBitsToUint(e4m3_decode(x_scale.v[i >> 2] >> ((i & 3u) * 8u)));
}

// x_decode: the numbers of eight `at` without scales, of what x_eight gave.
void x_decode(uvec4 q, uint at, out vec4 a, out vec4 b) {
    if (ACT == ACT_NVFP4) nvfp4_f32x8(q.x, a, b);
    else act8(q, at & 1u, a, b);
}

#endif
