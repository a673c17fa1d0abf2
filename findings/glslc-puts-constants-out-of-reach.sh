#!/usr/bin/env bash
# glslc makes invalid SPIR-V of a global constant KIND == 1u || KIND == 2u && FAST, where KIND and
# FAST are specialisation constants, and says nothing: a function above main refers to a number that
# is defined inside main. With the operands of || exchanged it is right. So are a || b and a && b of
# comparisons; what goes wrong has an operator of operators on its right, also a == b or bool(a & b).
#
# One would expect both orders to mean the same and to stand among the module's constants, since all
# parts are constants. A driver that is handed the module unchecked may do anything.
#
# Needs apt with Debian 12 (bookworm) among its sources. Seen the same with 2026.4.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/glslc"

seen=()
for either in 'KIND == 2u && FAST || KIND == 1u' 'KIND == 1u || KIND == 2u && FAST'; do
  cat >c.comp <<EOF
#version 460
layout(local_size_x = 1) in;
layout(constant_id = 0) const uint KIND = 4u;
layout(constant_id = 1) const bool FAST = false;
const bool EITHER = $either;
layout(std430, set = 0, binding = 0) buffer B { uint v[]; } b;
uint f(uint x) { return EITHER ? x : x * 3u; }
void main() {
    b.v[0] = f(b.v[1]);
    if (EITHER) b.v[2] = 7u;
}
EOF
  glslc --target-env=vulkan1.2 -O0 -o c.spv c.comp
  if spirv-val --target-env vulkan1.2 c.spv >said 2>&1; then seen+=(valid); else seen+=(invalid); fi
  echo "$either: expected valid, seen ${seen[-1]} $(head -n 1 said)"
done
[ "${seen[*]}" = 'valid invalid' ] || { echo "this has changed"; exit 1; }
