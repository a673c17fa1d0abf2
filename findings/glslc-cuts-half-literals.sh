#!/usr/bin/env bash
# glslc cuts literals of binary16 off where it should round them: 0.3hf is 0x34CC, below the nearest
# 0x34CD, and 65520.0hf is 65504 where rounding gives infinity. So it does where it makes a half of a
# constant, as of float16_t(0.3). A float that is not constant is right, converted in the shader.
#
# One would expect that a compiler rounds a literal to the nearest, as it does those of float and as
# C's and Python's do: constants of a reference in another language differ by a bit, and nothing says
# so. Literals that are one too small are half of all.
#
# Needs apt with Debian 12 (bookworm) among its sources. Seen the same with 2026.4.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/glslc"

cat >half.comp <<'EOS'
#version 460
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 1) in;
layout(std430, set = 0, binding = 0) buffer X { float16_t v[]; } x;
void main() {
    x.v[0] = 0.3hf;
    x.v[1] = 65520.0hf;
    x.v[2] = 1.9999hf;
    x.v[3] = float16_t(0.3);
}
EOS
glslc --target-env=vulkan1.2 -o half.spv half.comp
spirv-val --target-env vulkan1.2 half.spv
# A constant of 16 bits is one word, in the low half: OpConstant (43) of four words.
seen="$(od -An -v -tx4 -w4 half.spv | tr -d ' ' | awk '
  left > 0 { left--; if (op == "002b" && left == 0 && $1 ~ /^0000/) print "0x" toupper(substr($1, 5)); next }
  NR > 5 { op = substr($1, 5) # and before it how many words the instruction has
           left = 16 * index("123456789abcdef", substr($1, 3, 1)) + index("123456789abcdef", substr($1, 4, 1)) - 1 }' |
  sort -u | tr '\n' ' ')"
expected="0x34CD 0x4000 0x7C00 "
echo "expected: $expected; seen among constants: $seen"
for word in 0x34CC 0x3FFF 0x7BFF; do [[ " $seen" == *" $word "* ]] || { echo "this has changed"; exit 1; }; done
for word in $expected; do [[ " $seen" != *" $word "* ]] || { echo "this has changed"; exit 1; }; done
