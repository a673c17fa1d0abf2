// Whether binary16's subnormals count on a device that does not say so. dst holds 0xFFFFFFFF before,
// which no compiler knows:
//   dst[1] a subnormal times 2^8, twice       0x18001800
//   dst[2] a product that is a subnormal      0x00200020
//   dst[3] an f32 number that becomes one     0x00200020
//   dst[4] one that becomes an f32 number     0x37000000
// Bindings: 0 dst [5] u32.
// Workgroup: one invocation. Shared memory: 0.
// Features: shaderFloat16 (no matrix is used).
#version 460
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(local_size_x = 1) in;

layout(std430, set = 0, binding = 0) buffer Dst { uint dst[]; };

void main() {
    const uint ones = dst[0];
    const f16vec2 tiny = unpackFloat2x16(ones & 0x00800080u); // 2^-17
    dst[1] = packFloat2x16(tiny * unpackFloat2x16(ones & 0x5C005C00u));
    dst[2] = packFloat2x16(unpackFloat2x16(ones & 0x18001800u) * unpackFloat2x16(ones & 0x14001400u)); // 2^-9 * 2^-10
    dst[3] = packFloat2x16(f16vec2(vec2(uintBitsToFloat(ones & 0x36000000u))));                        // 2^-19
    dst[4] = floatBitsToUint(float(tiny.x));
}
