// exp, 1/x and 1/sqrt from additions and multiplications. Vulkan lets a device's own
// functions differ from the next one's, and exp by more than a cached byte may be off. Each
// is within 2 units in the last place whether or not the device rounds a*b in fma(a, b, c).
#ifndef LIB_REAL_GLSL
#define LIB_REAL_GLSL

// real_exp: e^x for x <= 0; 0 where that leaves the normal numbers, about x < -87.5. x =
// n ln 2 + r, |r| <= ln 2 / 2: adding 1.5 * 2^23 rounds to the integer n, whose low bits
// then are those of the sum, and 127 more makes them an exponent. ln 2 is in two parts of
// which the first has so few bits that its multiples are exact. The polynomial is the one
// of degree 5 whose relative error is least, 9.2e-8, among those with e^0 = 1.
vec4 real_exp(vec4 x) {
    vec4 c = max(x, vec4(-88.0));
    precise vec4 t = fma(c, vec4(1.44269504), vec4(12583039.0));
    precise vec4 n = t - 12583039.0;
    precise vec4 r = fma(n, vec4(2.12194440e-4), fma(n, vec4(-0.693359375), c));
    precise vec4 p = fma(r, vec4(8.29029735e-3), vec4(4.18980233e-2));
    p = fma(p, r, vec4(0.166676372));
    p = fma(p, r, vec4(0.499991477));
    p = fma(p, r, vec4(0.999999702));
    p = fma(p, r, vec4(1.0));
    return p * uintBitsToFloat(floatBitsToUint(t) << 23);
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
