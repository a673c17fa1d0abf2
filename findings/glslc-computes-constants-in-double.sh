#!/usr/bin/env bash
# glslc computes constant expressions of float and float16_t in double, and rounds at their end only:
# (16777216.0 + 1.0) - 16777216.0 is 1, where float has 0, 1e30 * 1e30 * 1e-30 is 1e30 and not
# infinite, and float(float16_t(70000.0)) is 70000, whose half is infinite. With one operand that is
# not constant each is what its types say.
#
# One would expect a constant of a type to be a number of that type, as in C and as a specialisation
# constant or a driver computes it. A scale that is a half by its type, and the same number stored in
# a buffer of halves, differ: float(float16_t(0.3)) is 0.3.
#
# Needs apt with Debian 12 (bookworm) among its sources. Seen the same with 2026.4.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/glslc"

expressions=('(16777216.0 + 1.0) - 16777216.0' '1e30 * 1e30 * 1e-30' 'float(float16_t(70000.0))' 'float(float16_t(0.3))'
  'float((2048.0hf + 1.0hf) - 2048.0hf)')
mapfile -t seen < <(stored float GL_EXT_shader_explicit_arithmetic_types_float16 "${expressions[@]}")
expected=(0 inf inf 0.300048828 0)
for i in "${!expressions[@]}"; do echo "${expressions[i]}: expected ${expected[i]}, seen ${seen[i]}"; done
[ "${seen[*]}" = '1 1.00000002e+30 70000 0.300000012 1' ] || { echo "this has changed"; exit 1; }
