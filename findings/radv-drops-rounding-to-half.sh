#!/usr/bin/env bash
# RADV of Mesa 25.0.7 and 26.1.6 makes an empty program of a kernel that rounds numbers to float16
# in their place, x = float(float16_t(x)): a float that becomes a half and then a float again was
# never converted. Nor is an integer, x = int(float(x)), which should round beyond 2^24. A half that
# is stored is rounded, and one that something is added to.
#
# One would expect that conversions round, as Vulkan says ("correctly rounded") and as C's casts do.
# A kernel that quantises its numbers leaves them as they are, 1e6 stays 1e6 where the half is
# infinite, and x - float(float16_t(x)), the error of it, is 0. `precise` does not help: it
# decorates arithmetic. The rules are those of NIR, which Mesa's drivers share: NVK and turnip make
# the same empty program, lavapipe gives 0.3 for 0.3. Rounding by integers avoids it.
#
# Nothing is executed: pipelines are created over Mesa's null device, and their listing is read.
# Needs a C compiler and a Debian mirror among apt's sources. Seen the same with 26.2.6.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/radv"
mesa trixie 25.0.7-2+deb13u1 glslc spirv-tools libvulkan-dev
mesa trixie-backports 26.1.6-1~bpo13+1

# kernel NAME TYPE EXPRESSION: NAME.spv, which replaces each x by the expression.
kernel() {
  cat >"$1.comp" <<EOF
#version 460
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) buffer X { $2 v[]; };
void main() {
    $2 x = v[gl_GlobalInvocationID.x];
    precise $2 y = $3;
    v[gl_GlobalInvocationID.x] = y;
}
EOF
  module "$1"
}
kernel half float 'float(float16_t(x))'
kernel integer int 'int(float(x))'
kernel sum float 'float(float16_t(x) + 1.0hf)'

for suite in trixie trixie-backports; do
  for name in half integer sum; do
    listing "$suite" "$name" >driver
    asked=$(with trixie trixie/usr/bin/spirv-dis --no-color "$name.spv" | grep -cE 'OpFConvert|OpConvert')
    stores=$(grep -c buffer_store "$suite.txt" || true)
    echo "$(<driver): $name, $asked conversions in SPIR-V: expected a program that stores; seen $stores stores"
    grep -E '^\s+[a-z]+_' "$suite.txt"
    case "$name $stores" in 'half 0' | 'integer 0' | 'sum 1') ;; *) echo "this has changed"; exit 1 ;; esac
  done
done
