// binary16 numbers as f32.
#ifndef LIB_F16_GLSL
#define LIB_F16_GLSL
#ifdef F16_CONVERTS
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif

// f16_decode: of the low 16 bits, by integers: a device may take subnormals for zeros in its own
// conversions. Exact; what is not finite becomes 2^16 or more.
float f16_decode(uint h) {
    const uint mag = h & 0x7FFFu;
    const float a = mag < 0x400u ? float(mag) * (1.0 / 16777216.0) : uintBitsToFloat((mag << 13) + 0x38000000u);
    return uintBitsToFloat(floatBitsToUint(a) | (h & 0x8000u) << 16);
}

// f16_convert is f16_decode by the device's conversion where F16_CONVERTS says that it keeps
// subnormals. What is not finite stays so.
#ifdef F16_CONVERTS
float f16_convert(uint h) { return float(unpackFloat2x16(h).x); }
#else
float f16_convert(uint h) { return f16_decode(h); }
#endif

#endif
