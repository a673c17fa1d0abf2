// The Sylvester-Hadamard rotation of a vector of 128 numbers:
//   y_i = 128^-0.5 * sum_j (-1)^popcount(i & j) x_j
// by 32 invocations, each with the four neighbours x[4*lane .. 4*lane+3] before and after.
// Seven rounds of sums and differences, two of them at a time; each sum is rounded once, in
// the same order on every device.
//
// Before including, declare  shared float hadamard_of[128 * VECTORS];  vector v of the
// workgroup uses hadamard_of[128*v ..]. The function contains barriers: every invocation
// of the workgroup has to call it.
#ifndef LIB_HADAMARD_GLSL
#define LIB_HADAMARD_GLSL

vec4 hadamard_round2(vec4 x) {
    precise vec4 a = vec4(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
    precise vec4 b = vec4(a.x + a.z, a.y + a.w, a.x - a.z, a.y - a.w);
    return b;
}

vec4 hadamard128(vec4 x, uint vector, uint lane) {
    uint base = vector * 128u;
    x = hadamard_round2(x); // bits 0 and 1 of the index
    barrier();
    for (uint k = 0u; k < 4u; k++) hadamard_of[base + 4u * lane + k] = x[k];
    barrier();
    for (uint bit = 2u; bit < 6u; bit += 2u) { // bits 2, 3, then 4, 5
        uint low = lane & ((1u << bit) - 1u);
        uint at = base + low + ((lane >> bit) << (bit + 2u));
        uint step = 1u << bit;
        vec4 y = hadamard_round2(vec4(hadamard_of[at], hadamard_of[at + step], hadamard_of[at + 2u * step], hadamard_of[at + 3u * step]));
        for (uint k = 0u; k < 4u; k++) hadamard_of[at + k * step] = y[k];
        barrier();
    }
    for (uint k = 0u; k < 4u; k++) { // bit 6
        uint i = 4u * lane + k;
        precise float y = hadamard_of[base + (i & 63u)] + (lane < 16u ? hadamard_of[base + (i | 64u)] : -hadamard_of[base + (i | 64u)]);
        precise float r = y * 0.08838834764831845;
        x[k] = r;
    }
    return x;
}

#endif
