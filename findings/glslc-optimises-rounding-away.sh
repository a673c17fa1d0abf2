#!/usr/bin/env bash
# glslc -O (spirv-opt -O) rewrites arithmetic of floats by rules of real numbers: (x + 1e20) - 1e20 is
# x, x * 0.0 is 0.0 whatever x is, and (x * 3.0) * 7.0 is x * 21.0. Nothing in the source or on the
# command line allows it; without -O all of them stay.
#
# One would expect of SPIR-V's optimiser what every C compiler does without -ffast-math: no value
# changes, and NaN and infinity stay what they are. Code that rounds by adding and subtracting a
# constant, or splits a float into two, is silently gone. `precise` keeps it.
#
# Needs apt with Debian 12 (bookworm) among its sources. Seen the same with 2026.4.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/glslc"

# operations PRECISE OPTION: how many additions, subtractions, multiplications and divisions are left of five.
operations() {
  cat >sum.comp <<EOS
#version 460
layout(local_size_x = 1) in;
layout(std430, set = 0, binding = 0) buffer X { float v[]; } x;
void main() {
    $1 float a = (x.v[0] + 1e20) - 1e20;
    $1 float b = x.v[1] * 0.0;
    $1 float d = (x.v[3] * 3.0) * 7.0;
    x.v[4] = a;
    x.v[5] = b;
    x.v[7] = d;
}
EOS
  glslc --target-env=vulkan1.2 $2 -o sum.spv sum.comp
  spirv-val --target-env vulkan1.2 sum.spv
  spirv-dis --no-color sum.spv | grep -cE 'OpF(Add|Sub|Mul|Div) ' || true
}
plain=$(operations '' -O0) fast=$(operations '' -O) precise=$(operations precise -O)
operations '' -O >/dev/null
spirv-dis --no-color sum.spv | grep -E 'OpF(Add|Sub|Mul|Div) |%float_0$' || true
echo "operations: expected 5, 5 with -O and 5 with precise and -O; seen $plain, $fast and $precise"
[ "$plain" -eq 5 ] && [ "$fast" -eq 1 ] && [ "$precise" -eq 5 ] || { echo "this has changed"; exit 1; }
