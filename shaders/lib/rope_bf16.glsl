// A pair of bf16 numbers turned by (cos, sin) as lib/rope.glsl has it and rounded to bf16
// again, with the subnormals that a device may flush: while both numbers are below 2^-64
// they are turned 2^64 times larger, where everything is normal, and whatever binary32
// would round on its subnormal grid is rounded there. (A subnormal beside a number above
// that is lost against it; only where cos or sin is 0 can it leave a zero's sign.)
#ifndef LIB_ROPE_BF16_GLSL
#define LIB_ROPE_BF16_GLSL
#include "lib/bf16.glsl"
#include "lib/rope.glsl"

// rope_bf16_raised: the number of 16 bits times 2^64, for magnitudes below 2^-64.
float rope_bf16_raised(uint b) {
    uint a = b & 0x7FFFu;
    float x = a < 0x80u ? float(a) * uintBitsToFloat(58u << 23) : uintBitsToFloat((a << 16) + (64u << 23));
    return uintBitsToFloat(floatBitsToUint(x) | ((b & 0x8000u) << 16));
}

// rope_bf16_grid: a raised product as binary32 would have rounded it: below 2^-126, here
// 2^-62, to multiples of 2^-149, here 2^-85.
float rope_bf16_grid(float p) {
    float a = abs(p);
    float one = uintBitsToFloat(65u << 23); // 2^-62, whose last place is 2^-85
    precise float sum = a + one;
    precise float rounded = sum - one;
    float r = a < one ? rounded : a;
    return uintBitsToFloat(floatBitsToUint(r) | (floatBitsToUint(p) & 0x80000000u));
}

// rope_bf16_lowered: the 16 bits of a raised sum.
uint rope_bf16_lowered(float v) {
    uint u = floatBitsToUint(v), a = u & 0x7FFFFFFFu;
    uint bits = a < (65u << 23) ? uint(uintBitsToFloat(a) * uintBitsToFloat(212u << 23)) : a - (64u << 23);
    return bf16_encode_bits(bits | (u & 0x80000000u));
}

uint rope_bf16_tiny(uint word, vec2 cos_sin) {
    float e = rope_bf16_raised(word & 0xFFFFu), o = rope_bf16_raised(word >> 16);
    precise float ec = e * cos_sin.x;
    precise float os = o * cos_sin.y;
    precise float oc = o * cos_sin.x;
    precise float es = e * cos_sin.y;
    precise float x = rope_bf16_grid(ec) - rope_bf16_grid(os);
    precise float y = rope_bf16_grid(oc) + rope_bf16_grid(es);
    return rope_bf16_lowered(x) | (rope_bf16_lowered(y) << 16);
}

// rope_bf16: the pair that lies in a word, forward.
uint rope_bf16(uint word, vec2 cos_sin) {
    if (max(word & 0x7FFFu, (word >> 16) & 0x7FFFu) < 0x1F80u) return rope_bf16_tiny(word, cos_sin);
    vec2 r = rope_rotate(bf16_unpack2(word), cos_sin);
    return bf16_pack2(r.x, r.y);
}

#endif
