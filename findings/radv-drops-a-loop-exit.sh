#!/usr/bin/env bash
# RADV of Mesa 26.1.6 drops the block at one of a loop's two exits, here where the loop is in another one
# and ends with a branch on a value that invocations differ in. The block's one instruction, which keeps
# `i` for the outer loop, is gone, and the branch to it goes to the program's first word: after the last
# pass the kernel starts again. 25.0.7 is right.
#
# One would expect that a released driver compiles two plain loops, without matrices and barriers, on
# every GPU. It compiles them so for each that was tried: Polaris, Vega, RDNA1, 3 and 4. The sign in a
# listing is a label out of its order before the first instruction. One exit in place of two
# (`stop = ...; if (stop || i >= n) break;`) avoids it.
#
# Nothing is executed: pipelines are created over Mesa's null device, and their listing is read.
# Needs a C compiler and a Debian mirror among apt's sources. Seen the same with 26.2.6.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/radv"
mesa trixie 25.0.7-2+deb13u1 glslc spirv-tools libvulkan-dev
mesa trixie-backports 26.1.6-1~bpo13+1

cat >loop.comp <<'EOF'
#version 460
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) buffer X { uint v[]; } x;
layout(push_constant) uniform Push { uint n, again; } pc;
void main() {
    const uint id = gl_LocalInvocationIndex;
    uint i = 0u, sum = 0u;
    while (i < pc.n) {
        const uint first = i;
        for (;;) {
            if (pc.again != 0u && i != first) break;
            sum += x.v[id + 64u * (i & 3u)];
            i++;
            if (i >= pc.n) break;
            x.v[id + 64u * (i + 2u)] = sum;
            if (sum > 100u) x.v[id] = i;
        }
    }
    x.v[id] = sum;
}
EOF
module loop

# look SUITE: the branches to the program's first word, by what their own words say.
look() {
  listing "$1" loop
  grep -E '^BB|branch' "$1.txt"
  branches=0 at=0 last=0
  while IFS= read -r line; do
    case "$line" in
      *'(then repeated '*) line="${line##*repeated }"; at=$((at + last * ${line%% *})); continue ;;
      *'; '*) ;;
      *) continue ;;
    esac
    # shellcheck disable=SC2206
    words=(${line##*; })
    if [[ $line == *branch* ]]; then
      to=$((16#${words[0]} & 0xffff))
      [ $((at + 1 + to - (to > 0x7fff ? 0x10000 : 0))) -ne 0 ] || branches=$((branches + 1))
    fi
    last=${#words[@]} at=$((at + last))
  done <"$1.txt"
}
look trixie
before=$branches
look trixie-backports
echo "branches to the program's first word: expected 0 and 0, seen $before and $branches"
[ "$before" -eq 0 ] && [ "$branches" -eq 1 ] || { echo "this has changed"; exit 1; }
