// Numbers of a row whose E4M3 codes the device converts, times their scale, for elements of bf16.
//
// The scale of a code as cm_e4m3_place has it, 2^8 of the number's, is an ordinary f32 number or 0;
// the number's own may be too small for one. Then numbers are lifted: made 2^-8 of what they are,
// so that the product is that of the kernels without conversions. All of it is exact.
#ifndef LIB_CM_FLOAT8_GLSL
#define LIB_CM_FLOAT8_GLSL

// cm_small: whether the scale of a placed code asks for numbers that are lifted.
bool cm_small(float scale) { return floatBitsToUint(scale) <= 8u << 23; }

// cm_converted: numbers of four codes times the scale of placed ones, which is not small or else
// the numbers are lifted.
vec4 cm_converted(vec4 x, float scale, bool lifted) {
    if (!lifted) return x * uintBitsToFloat(floatBitsToUint(scale) - (8u << 23));
    precise vec4 placed = x * 0.00390625;
    return placed * scale;
}

#endif
