#!/usr/bin/env bash
# RADV_DEBUG=asm of Debian 13 calls instructions of RDNA3 "(invalid instruction)" that are right: those
# that name the high half of a register. ACO, which writes the code, uses halves of registers; LLVM 19,
# which only prints it, is asked without +real-true16 and does not know them.
#
# One would expect a broken compiler where a driver's own listing calls its code invalid. The same LLVM
# reads every such word if it is told of halves; LLVM 22, which RADV of Debian sid links, is.
#
# Nothing is executed: the pipeline is created over Mesa's null device. Needs a C compiler and a Debian
# mirror among apt's sources. Seen the same with RADV 26.1.6 of trixie-backports.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/radv"
mesa trixie 25.0.7-2+deb13u1 glslc spirv-tools libvulkan-dev llvm-19=1:19.1.7-3+b1

cat >half.comp <<'EOF'
#version 460
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) buffer X { uvec2 v[]; } x;
void main() {
    const uint i = gl_GlobalInvocationID.x;
    const f16vec2 root = sqrt(unpackFloat2x16(x.v[i].x));
    x.v[i].y = packFloat2x16(exp2(unpackFloat2x16(x.v[i].y)) + root);
}
EOF
module half
listing trixie half
llvm() { with trixie trixie/usr/lib/llvm-19/bin/llvm-mc --disassemble --triple=amdgcn --mcpu=gfx1100 "$@"; }
llvm --version | grep version
refused=0 read=0
while read -r word; do
  bytes="0x${word:6:2} 0x${word:4:2} 0x${word:2:2} 0x${word:0:2}"
  refused=$((refused + 1))
  said="$(llvm --mattr=+real-true16 <<<"$bytes" 2>&1 | grep -E '^\s+v_' || true)"
  echo "$word (invalid instruction), with +real-true16:$said"
  [[ $said != *.h* ]] || read=$((read + 1))
done < <(sed -n 's/^(invalid instruction).*; //p' trixie.txt)
echo "words refused: expected 0, seen $refused, with +real-true16 $((refused - read))"
[ "$refused" -gt 0 ] && [ "$read" -eq "$refused" ] || { grep ';' trixie.txt; echo "this has changed"; exit 1; }
