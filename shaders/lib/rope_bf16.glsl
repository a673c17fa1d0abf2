// A pair of bf16 numbers turned by (cos, sin) as lib/rope.glsl has it and rounded to bf16
// again, with the subnormals that a device may flush: numbers below 2^-64 are turned 2^64
// times larger, where everything is normal, and whatever binary32 would round on its
// subnormal grid is rounded there. A small number beside one that is not matters only
// where the other's factor is 0; otherwise it is lost against the other.
#ifndef LIB_ROPE_BF16_GLSL
#define LIB_ROPE_BF16_GLSL
#extension GL_EXT_control_flow_attributes : require
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

// rope_bf16_product: the number of 16 bits, if it is small, times c, raised, as binary32
// rounds it: below 2^-126 to multiples of 2^-149. These are found from the 32 bits of the
// exact product, for a float product would have been rounded before.
float rope_bf16_product(uint b, float c) {
    precise float p = rope_bf16_raised(b) * c;
    uint a = b & 0x7FFFu, u = floatBitsToUint(c) & 0x7FFFFFFFu, sign = floatBitsToUint(p) & 0x80000000u;
    if (abs(p) >= uintBitsToFloat(65u << 23)) return p; // 2^-62, which is 2^-126 raised
    uint m = ((a & 0x7Fu) | (a < 0x80u ? 0u : 0x80u)) * ((u & 0x7FFFFFu) | 0x800000u);
    int shift = 135 - int(max(a >> 7, 1u)) - int(u >> 23); // at least 1, or m is 0; a tiny c leaves nothing
    uint s = uint(clamp(shift, 1, 32));
    uint kept = s < 32u ? m >> s : 0u;
    uint rest = s < 32u ? m << (32u - s) : m;              // behind the point, 2^32 being one
    uint n = kept + (rest > 0x80000000u || (rest == 0x80000000u && (kept & 1u) != 0u) ? 1u : 0u);
    if (a >= ROPE_BF16_SMALL || shift > 32) n = 0u;
    float r = float(n) * uintBitsToFloat(42u << 23); // 2^-85, which is 2^-149 raised
    return uintBitsToFloat(floatBitsToUint(r) | sign);
}

// rope_bf16_lowered: the 16 bits of a raised sum.
uint rope_bf16_lowered(float v) {
    uint u = floatBitsToUint(v), a = u & 0x7FFFFFFFu;
    uint bits = a < (65u << 23) ? uint(uintBitsToFloat(a) * uintBitsToFloat(212u << 23)) : a - (64u << 23);
    return bf16_encode_bits(bits | (u & 0x80000000u));
}

uint rope_bf16_small(uint word, vec2 cos_sin) {
    uint e = word & 0xFFFFu, o = word >> 16;
    precise float x = rope_bf16_product(e, cos_sin.x) - rope_bf16_product(o, cos_sin.y);
    precise float y = rope_bf16_product(o, cos_sin.x) + rope_bf16_product(e, cos_sin.y);
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

// rope_bf16_words: the four pairs of four words, forward, the first two by near. The rare case is a
// loop and not four copies, because in a whole step instructions come from memory, unused ones too.
uvec4 rope_bf16_words(uvec4 w, vec4 near, vec4 far) {
    if (rope_bf16_usual(w)) {
        return uvec4(rope_bf16_plain(w.x, near.xy), rope_bf16_plain(w.y, near.zw), rope_bf16_plain(w.z, far.xy), rope_bf16_plain(w.w, far.zw));
    }
    [[dont_unroll]] for (uint k = 0u; k < 4u; k++) {
        w = uvec4(w.yzw, rope_bf16(w.x, near.xy));
        const vec2 first = near.xy;
        near = vec4(near.zw, far.xy);
        far = vec4(far.zw, first);
    }
    return w;
}

#endif
