// How a block of an indexer query's bf16 numbers becomes codes and a scale, for the kernels that
// quantise queries.
//
// The including kernel has a constant bool QUERY_FP4: MXFP4, or else FP8.
#ifndef LIB_INDEX_QUERY_GLSL
#define LIB_INDEX_QUERY_GLSL
#extension GL_EXT_control_flow_attributes : require
#include "bf16.glsl"
#include "e4m3.glsl"
#include "e2m1.glsl"
#include "ue8m0.glsl"

// scaled: bits of the bf16 number x times 2^(127-sb), a subnormal x included. A product
// that underflows is far below the smallest code; the sign is put back behind it.
uint scaled(uint x, uint sb) {
    uint a = x & 0x7FFFu;
    float normal = uintBitsToFloat(a << 16) * ue8m0_inverse(sb);
    float tiny = float(a) * uintBitsToFloat(uint(max(121 - int(sb), 0)) << 23); // a * 2^-133 * 2^(127-sb)
    float y = a < 0x80u ? tiny : normal;
    return (floatBitsToUint(y) & 0x7FFFFFFFu) | ((x & 0x8000u) << 16);
}

// encode_any: codes of a lane's 8 values as they lie in memory, for any values: 64 bits of
// FP8 or 32 of FP4.
uvec2 encode_any(uvec4 w, uint sb) {
    uvec2 codes = uvec2(0u);
    [[dont_unroll]] for (uint i = 0u; i < 8u; i++) {
        const uint y = scaled(w.x & 0xFFFFu, sb), code = QUERY_FP4 ? e2m1_encode_bits(y) : e4m3_encode_bits(y);
        const uint bits = QUERY_FP4 ? 4u : 8u, last = 32u - bits;
        codes.x = QUERY_FP4 ? (codes.x >> bits) | (code << last) : (codes.x >> bits) | (codes.y << last);
        codes.y = (codes.y >> bits) | (code << last);
        w = (w >> 16) | (w.yzwx << 16);
    }
    return QUERY_FP4 ? uvec2(codes.x, 0u) : codes;
}

// The rest is for the usual block: its maximum is finite and so large that a subnormal
// beside it is nothing. There a code follows from one product and one sum, whose low bits
// are the product rounded to a multiple of the smallest code.
//
// fp4_code: of a magnitude, given as the bits of an f32.
uint fp4_code(uint a, float inverse) {
    precise float y = uintBitsToFloat(a) * inverse;
    precise float tiny = y + 4194304.0; // last place 2^-1
    uint u = floatBitsToUint(y);
    uint normal = min((u + 0x1FFFFFu + ((u >> 22) & 1u)) >> 22, 252u + 7u) - 252u;
    return y < 1.0 ? floatBitsToUint(tiny) - 0x4A800000u : normal;
}

uint fp8x4(uvec2 w, float inverse) {
    const uint signs = ((w.x >> 8) & 0x80u) | ((w.x >> 16) & 0x8000u) | ((w.y << 8) & 0x800000u) | (w.y & 0x80000000u);
    return e4m3_codes4(vec4(bf16_unpack2(w.x), bf16_unpack2(w.y)) * (inverse * 128.0)) | signs;
}

uint fp4x2(uint w, float inverse) {
    uint signs = ((w >> 12) & 8u) | ((w >> 24) & 0x80u);
    return fp4_code((w << 16) & 0x7FFF0000u, inverse) | (fp4_code(w & 0x7FFF0000u, inverse) << 4) | signs;
}

uvec2 encode(uvec4 w, uint amax, uint sb) {
    if (amax < 0x0D80u || amax >= 0x7F80u) return encode_any(w, sb); // below 2^-100, or not finite
    const float inverse = ue8m0_inverse(sb);
    if (QUERY_FP4) {
        const uint low = fp4x2(w.x, inverse) | (fp4x2(w.y, inverse) << 8);
        return uvec2(low | (fp4x2(w.z, inverse) << 16) | (fp4x2(w.w, inverse) << 24), 0u);
    }
    return uvec2(fp8x4(w.xy, inverse), fp8x4(w.zw, inverse));
}

uint max4(uvec4 m) { return max(max(m.x, m.y), max(m.z, m.w)); }

uint scale_byte(uint amax) {
    float m = uintBitsToFloat(amax << 16);
    return QUERY_FP4 ? ue8m0_encode(m, UE8M0_EPS_MXFP4, UE8M0_INV_E2M1) : ue8m0_encode(m, UE8M0_EPS_KV, UE8M0_INV_E4M3);
}

#endif
