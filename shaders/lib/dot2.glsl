// Products of halves without matrices. With DOT2, which a build defines, a kernel keeps its numbers
// as f16, two a word, and multiplies them by dot2: a.x*b.x + a.y*b.y + c, in any order, of halves
// and an f32. That is one instruction, which may take subnormal halves for zeros. With DOT2_BY_FMA,
// which only tests' builds define, it is two multiply-adds, for devices without the instruction.
#ifndef LIB_DOT2_GLSL
#define LIB_DOT2_GLSL
#ifdef DOT2
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_spirv_intrinsics : require

const bool HALVES = true;

#ifdef DOT2_BY_FMA
float dot2(f16vec2 a, f16vec2 b, float c) { return fma(float(a.x), float(b.x), fma(float(a.y), float(b.y), c)); }
#else
// OpFDot2MixAcc32VALVE, of the capability DotProductFloat16AccFloat32VALVE.
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
float dot2_at_once(f16vec2 a, f16vec2 b, float c);

float dot2(f16vec2 a, f16vec2 b, float c) { return dot2_at_once(a, b, c); }
#endif
#else
const bool HALVES = false;
#endif
#endif
