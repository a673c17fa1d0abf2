// Eight E4M3 codes and the UE8M0 byte of their block as bf16, by moving bits. A normal code is a
// bf16 number whose exponent has another bias, and the scale adds to the exponent. Codes below 2^-6,
// NaN and scales at the ends of their range go the long way.
#ifndef LIB_E4M3_BF16_GLSL
#define LIB_E4M3_BF16_GLSL
#include "bf16.glsl"
#include "e4m3.glsl"
#include "ue8m0.glsl"

// e4m3_normal: no code of the eight is a NaN or below 2^-6 (8, without its sign). No byte of the
// sums carries into another.
bool e4m3_normal(uvec2 codes) {
    const uvec2 least = (codes | 0x80808080u) - 0x08080808u, nan = (codes & 0x7F7F7F7Fu) + 0x01010101u;
    return (least.x & ~nan.x & least.y & ~nan.y & 0x80808080u) == 0x80808080u;
}

// e4m3_moved: the codes in bytes 1 and 3 of w, with exponents raised by the halves of raise.
uint e4m3_moved(uint w, uint raise) { return (((w >> 4) & 0x07F007F0u) | (w & 0x80008000u)) + raise; }

uvec2 e4m3_moved4(uint w, uint raise) {
    const uint even = e4m3_moved(w << 8, raise), odd = e4m3_moved(w, raise);
    return uvec2((even & 0xFFFFu) | (odd << 16), (even >> 16) | (odd & 0xFFFF0000u));
}

// e4m3_bf16x8: codes * 2^(scale_byte - 127), exact.
uvec4 e4m3_bf16x8(uvec2 codes, uint scale_byte) {
    const uint bias = scale_byte - 7u; // E4M3's exponents 1 to 15 become 1 to 254
    if (bias <= 239u && e4m3_normal(codes)) {
        return uvec4(e4m3_moved4(codes.x, bias * 0x00800080u), e4m3_moved4(codes.y, bias * 0x00800080u));
    }
    const float scale = ue8m0_scale(scale_byte);
    const vec4 a = e4m3_decode4(codes.x) * scale, b = e4m3_decode4(codes.y) * scale;
    return uvec4(bf16_pack2_exact(a.x, a.y), bf16_pack2_exact(a.z, a.w), bf16_pack2_exact(b.x, b.y), bf16_pack2_exact(b.z, b.w));
}

#endif
