// binary16 numbers as f32. Builds that compute with halves are for devices that keep subnormals
// (package opkit), so they take the device's conversion. Others do it by integers: there a device
// may take subnormals for zeros.
#ifndef LIB_F16_GLSL
#define LIB_F16_GLSL
#if defined(HALF_CODES) || defined(CM_A) || defined(DOT2)
#define F16_CONVERTS
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif

// f16_decode: of the low 16 bits, which are a finite number. Exact.
float f16_decode(uint h) {
#ifdef F16_CONVERTS
    return float(unpackFloat2x16(h).x);
#else
    const uint mag = h & 0x7FFFu;
    const float a = mag < 0x400u ? float(mag) * (1.0 / 16777216.0) : uintBitsToFloat((mag << 13) + 0x38000000u);
    return uintBitsToFloat(floatBitsToUint(a) | (h & 0x8000u) << 16);
#endif
}

#endif
