// Products of halves without matrices. With HALVES, a choice, a kernel keeps its numbers as f16,
// two a word, and multiplies them by dot2: a.x*b.x + a.y*b.y + c, in any order, of halves and an
// f32. With DOT2, a choice, too, that is one instruction, which may take subnormal halves for
// zeros. Without, it is two multiply-adds, so that devices without the instruction can execute all
// else of a kernel.
#ifndef LIB_DOT2_GLSL
#define LIB_DOT2_GLSL
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_spirv_intrinsics : require

layout(constant_id = 91) const bool HALVES = false;
layout(constant_id = 92) const bool DOT2 = false;

// OpFDot2MixAcc32VALVE, of the capability DotProductFloat16AccFloat32VALVE.
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
float dot2_at_once(f16vec2 a, f16vec2 b, float c);

float dot2(f16vec2 a, f16vec2 b, float c) {
    if (DOT2) return dot2_at_once(a, b, c);
    return fma(float(a.x), float(b.x), fma(float(a.y), float(b.y), c));
}

#endif
