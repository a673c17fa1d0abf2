// UE8M0: a byte s stands for the power of two 2^(s-127).
#ifndef LIB_UE8M0_GLSL
#define LIB_UE8M0_GLSL

#define UE8M0_INV_E4M3 uintBitsToFloat(0x3B124925u) // fp32(1/448)
#define UE8M0_INV_E2M1 uintBitsToFloat(0x3E2AAAABu) // fp32(1/6)
#define UE8M0_EPS_KV uintBitsToFloat(0x38D1B717u)   // 1e-4: K cache and indexer FP8
#define UE8M0_EPS_OUT uintBitsToFloat(0x2EDBE6FFu)  // 1e-10: o and FP8 activations
#define UE8M0_EPS_MXFP4 uintBitsToFloat(0x01C00000u) // 6 * 2^-126: MXFP4 blocks

// ue8m0_encode: the byte of a block with absolute maximum amax >= 0; inv_max is fp32(1/M)
// for elements up to M. max(amax, eps)/M rounded up to a power of two; what is one already
// stays. One multiplication, then bits: log2 of a device is too coarse to decide a byte.
uint ue8m0_encode(float amax, float eps, float inv_max) {
    // Non-negative floats order like their bits, and so a subnormal amax is no special case.
    precise float r = uintBitsToFloat(max(floatBitsToUint(amax), floatBitsToUint(eps))) * inv_max;
    return ((floatBitsToUint(r) + 0x007FFFFFu) >> 23) & 0xFFu;
}

// ue8m0_scale: 2^(s-127); 0 for s = 0 and +inf for s = 255, and neither is written
// for finite data.
float ue8m0_scale(uint s) { return uintBitsToFloat(s << 23); }

// ue8m0_inverse: 2^(127-s) for s = 1..253; 0 for 254 and 255.
float ue8m0_inverse(uint s) { return uintBitsToFloat((254u - min(s, 254u)) << 23); }

#endif
