// binary16 numbers as f32, by integers: a device may take subnormals for zeros in its own
// conversions.
#ifndef LIB_F16_GLSL
#define LIB_F16_GLSL

// f16_decode: of the low 16 bits. Exact; what is not finite becomes 2^16 or more.
float f16_decode(uint h) {
    const uint mag = h & 0x7FFFu;
    const float a = mag < 0x400u ? float(mag) * (1.0 / 16777216.0) : uintBitsToFloat((mag << 13) + 0x38000000u);
    return uintBitsToFloat(floatBitsToUint(a) | (h & 0x8000u) << 16);
}

#endif
