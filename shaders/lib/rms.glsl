// The factor of an RMS norm, (sum(x^2)/n + eps)^-0.5, from rows of bf16 that invocations
// have in units of 8 values, four words. Sums go pairwise and in one order, with nothing
// but additions and multiplications, so that every device gets the same bits.
//
// Declare "shared vec4 rms_of[invocations / 4]" before including this, or define RMS_OF(i) as such
// an element; an invocation stores its sum in component i % 4 of element i / 4.
#ifndef LIB_RMS_GLSL
#define LIB_RMS_GLSL
#extension GL_EXT_control_flow_attributes : require
#include "lib/bf16.glsl"
#include "lib/real.glsl"

#ifndef RMS_OF
#define RMS_OF(i) rms_of[i]
#endif

const float RMS_MOST = 3.0e38; // a sum below it has no NaN or infinity among its numbers

// rms_squares: the sum of the squares of 8 values.
float rms_squares(uvec4 w) {
    vec4 a = vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)), b = vec4(bf16_unpack2(w.z), bf16_unpack2(w.w));
    precise vec4 aa = a * a;
    precise vec4 bb = b * b;
    precise float s = ((aa.x + aa.y) + (aa.z + aa.w)) + ((bb.x + bb.y) + (bb.z + bb.w));
    return s;
}

// rms_sum32: the sum over 32 neighbouring invocations of what they stored in rms_of, the
// first of them a multiple of 32. A barrier has passed since they did.
float rms_sum32(uint first) {
    uint i = first / 4u;
    precise vec4 s = ((RMS_OF(i) + RMS_OF(i + 1u)) + (RMS_OF(i + 2u) + RMS_OF(i + 3u)))
                   + ((RMS_OF(i + 4u) + RMS_OF(i + 5u)) + (RMS_OF(i + 6u) + RMS_OF(i + 7u)));
    precise float sum = (s.x + s.y) + (s.z + s.w);
    return sum;
}

// rms_pack2: bf16_pack2 of two values that are no NaNs.
uint rms_pack2(float lo, float hi) {
    uint a = floatBitsToUint(lo), b = floatBitsToUint(hi);
    return ((a + 0x7FFFu + ((a >> 16) & 1u)) >> 16) | ((b + 0x7FFFu + ((b >> 16) & 1u)) & 0xFFFF0000u);
}

// rms_scaled: 8 values times r and then their weights, a of the first four and b of the last. NaNs
// are rare. They are looked for in all values at once and packed by a loop, because in a whole step
// instructions come from memory, unused ones too.
uvec4 rms_scaled(uvec4 w, float r, vec4 a, vec4 b) {
    precise vec4 x = (vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)) * r) * a;
    precise vec4 y = (vec4(bf16_unpack2(w.z), bf16_unpack2(w.w)) * r) * b;
    const uvec4 m = max(floatBitsToUint(x) & 0x7FFFFFFFu, floatBitsToUint(y) & 0x7FFFFFFFu);
    uvec4 packed = uvec4(rms_pack2(x.x, x.y), rms_pack2(x.z, x.w), rms_pack2(y.x, y.y), rms_pack2(y.z, y.w));
    if (max(max(m.x, m.y), max(m.z, m.w)) > 0x7F800000u) {
        vec4 p = x, q = y;
        [[dont_unroll]] for (uint k = 0u; k < 4u; k++) {
            packed = uvec4(packed.yzw, bf16_pack2(p.x, p.y));
            p = vec4(p.zw, q.xy);
            q = q.zwxy;
        }
    }
    return packed;
}

// rms_factor: of a sum of squares of n values; 0 for a sum that overflowed.
float rms_factor(float sum, float inverse_n, float eps) {
    precise float mean = sum * inverse_n;
    precise float x = mean + eps;
    return real_rsqrt(x);
}

#endif
