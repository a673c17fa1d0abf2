// A pair of bf16 numbers turned by (cos, sin) as lib/rope.glsl has it and rounded to bf16
// again, with the subnormals that a device may flush: numbers below 2^-64 are turned 2^64
// times larger, where everything is normal, and whatever binary32 would round on its
// subnormal grid is rounded there. A small number beside one that is not matters only
// where the other's factor is 0; otherwise it is lost against the other.
#ifndef LIB_ROPE_BF16_GLSL
#define LIB_ROPE_BF16_GLSL
#include "lib/bf16.glsl"
#include "lib/rope.glsl"

const uint ROPE_BF16_SMALL = 0x1F80u; // 2^-64

// rope_bf16_raised: the number of 16 bits times 2^64; a zero of its sign if it is not small.
float rope_bf16_raised(uint b) {
    uint a = b & 0x7FFFu;
    if (a >= ROPE_BF16_SMALL) a = 0u;
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

uint rope_bf16_small(uint word, vec2 cos_sin) {
    float e = rope_bf16_raised(word & 0xFFFFu), o = rope_bf16_raised(word >> 16);
    precise float ec = e * cos_sin.x;
    precise float os = o * cos_sin.y;
    precise float oc = o * cos_sin.x;
    precise float es = e * cos_sin.y;
    precise float x = rope_bf16_grid(ec) - rope_bf16_grid(os);
    precise float y = rope_bf16_grid(oc) + rope_bf16_grid(es);
    return rope_bf16_lowered(x) | (rope_bf16_lowered(y) << 16);
}

// rope_bf16_usual: are all eight numbers of four words finite and not small? Then the next
// function does; both halves of a word are compared by one addition.
bool rope_bf16_usual(uvec4 w) {
    uvec4 a = w & 0x7FFF7FFFu;
    uvec4 high = (a + (0x8000u - ROPE_BF16_SMALL) * 0x10001u) & ~(a + 0x00800080u); // >= 2^-64, and below infinity
    return ((high.x & high.y) & (high.z & high.w) & 0x80008000u) == 0x80008000u;
}

// rope_bf16_plain: the pair that lies in a word, forward, both numbers usual.
uint rope_bf16_plain(uint word, vec2 cos_sin) {
    vec2 r = rope_rotate(bf16_unpack2(word), cos_sin);
    uint x = floatBitsToUint(r.x), y = floatBitsToUint(r.y);
    x += 0x7FFFu + ((x >> 16) & 1u);
    y += 0x7FFFu + ((y >> 16) & 1u);
    return (x >> 16) | (y & 0xFFFF0000u);
}

// rope_bf16: the pair that lies in a word, forward.
uint rope_bf16(uint word, vec2 cos_sin) {
    uint e = word & 0x7FFFu, o = (word >> 16) & 0x7FFFu;
    vec2 r = rope_rotate(bf16_unpack2(word), cos_sin);
    uint plain = bf16_pack2(r.x, r.y);
    if (max(e, o) >= ROPE_BF16_SMALL && min(e, o) >= 0x80u) return plain;
    bool e_small = e < ROPE_BF16_SMALL, o_small = o < ROPE_BF16_SMALL;
    uint small = rope_bf16_small(word, cos_sin);
    bool x_small = (e_small || cos_sin.x == 0.0) && (o_small || cos_sin.y == 0.0);
    bool y_small = (o_small || cos_sin.x == 0.0) && (e_small || cos_sin.y == 0.0);
    return ((x_small ? small : plain) & 0xFFFFu) | ((y_small ? small : plain) & 0xFFFF0000u);
}

#endif
