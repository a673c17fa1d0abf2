#!/usr/bin/env bash
# glslc leaves the sign to abs() of constants of 8, 16 and 64 bits: abs(int16_t(-5)) is -5, sign()
# of it is 1, and of sign(int64_t(-5)) half of the bits are left to chance. A constant of 64 bits
# modulo 1 << 32, or any other number whose lower half is 0, stays what it is. For 32 bits all of
# them are right, and for any type where the argument is not constant.
#
# One would expect a function to give the same of a constant and of a variable, and of int16_t what
# it gives of int. glslang's front end computes the first itself, with -O0, too. It knows abs and
# sign of 32 bits only, and looks for a divisor of 0 in the lower 32.
#
# Needs apt with Debian 12 (bookworm) among its sources. Seen the same with 2026.4.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/glslc"

expressions=('abs(-5)' 'sign(-5)' 'abs(int8_t(-5))' 'abs(int16_t(-5))' 'abs(int64_t(-5))' 'sign(int8_t(-5))' 'sign(int16_t(-5))'
  '0x300000005L % 0x100000000L' '0x300000005UL % 0x100000000UL' '0x300000005UL % 0x100000001UL')
mapfile -t seen < <(stored int64_t GL_EXT_shader_explicit_arithmetic_types "${expressions[@]}")
read -ra expected <<<'5 -1 5 5 5 -1 -1 5 5 2'
for i in "${!expressions[@]}"; do echo "${expressions[i]}: expected ${expected[i]}, seen ${seen[i]}"; done
[ "${seen[*]}" = '5 -1 -5 -5 -5 1 1 12884901893 12884901893 2' ] || { echo "this has changed"; exit 1; }
