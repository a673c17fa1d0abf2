// exp, 1/x and 1/sqrt from additions and multiplications alone, whose rounding Vulkan fixes. A
// device's own functions differ from one to the next by several units in the last place,
// which would show in cached bytes. Each is within 2 units in the last place.
#ifndef LIB_REAL_GLSL
#define LIB_REAL_GLSL

// real_exp: e^x for x <= 0 and -inf; 0 below -87, where the result would leave the normal
// numbers. x = n ln 2 + r, |r| <= ln 2 / 2, with ln 2 in two parts of which the first has so
// few bits that its multiples are exact; a polynomial for e^r, and n into the exponent.
// Coefficients: Cephes expf.
vec4 real_exp(vec4 x) {
    vec4 c = max(x, vec4(-88.0));
    precise vec4 n = floor(c * 1.44269504 + 0.5);
    precise vec4 r = (c - n * 0.693359375) + n * 2.12194440e-4;
    precise vec4 p = ((((r * 1.9875691500e-4 + 1.3981999507e-3) * r + 8.3334519073e-3) * r + 4.1665795894e-2) * r
        + 1.6666665459e-1) * r + 5.0000001201e-1;
    precise vec4 e = (p * (r * r) + r) + 1.0;
    precise vec4 y = e * uintBitsToFloat(uvec4(ivec4(n) + 127) << 23);
    return mix(y, vec4(0.0), lessThan(x, vec4(-87.0)));
}

// real_rcp: 1/x for x in [2^-60, 2^60], by Newton's iteration from a guess with 12 percent
// error that reflects the exponent.
vec4 real_rcp(vec4 x) {
    vec4 y = uintBitsToFloat(0x7EF311C7u - floatBitsToUint(x));
    for (uint i = 0u; i < 4u; i++) {
        precise vec4 next = y + y * (1.0 - x * y);
        y = next;
    }
    return y;
}

// real_rsqrt: x^-0.5 for a normal x; 0 for +inf. Newton's iteration from the well-known
// first guess by halving the exponent, which has 3 percent error.
float real_rsqrt(float x) {
    float y = uintBitsToFloat(0x5F375A86u - (floatBitsToUint(x) >> 1));
    for (uint i = 0u; i < 4u; i++) {
        precise float e = 1.0 - (x * y) * y;
        precise float next = y + (0.5 * y) * e;
        y = next;
    }
    return floatBitsToUint(x) >= 0x7F800000u ? 0.0 : y;
}

#endif
