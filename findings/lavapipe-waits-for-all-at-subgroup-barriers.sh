#!/usr/bin/env bash
# lavapipe of Mesa 25.0 and 26.2 takes subgroupBarrier() for the workgroup's barrier(). Where one subgroup
# alone executes it, that subgroup waits for the others to come to their next barrier(), and they go on
# from there before it has: they read 1, which the subgroup was to replace by 7. Mesa 22.3 is right.
#
# One would expect that control flow must be uniform in a subgroup only, as SPIR-V says of a barrier with
# the scope Subgroup, and on a driver whose subgroups are vectors of one thread that it does nothing. A
# kernel that gives subgroups loops of different lengths is right on GPUs and loses results here, without
# a message.
#
# Needs a C compiler and a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/dispatch"
trixie=25.0.7-2+deb13u1 sid=26.2.6-1
get trixie libvulkan1 "mesa-vulkan-drivers=$trixie"
get sid libvulkan1 "mesa-vulkan-drivers=$sid" libvulkan-dev glslc

cat >last.comp <<'END'
#version 460
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = 32) in;
layout(std430, set = 0, binding = 0) buffer Y { uint y[32]; };
shared uint s;
void main() {
    if (gl_LocalInvocationIndex == 0u) s = 1u;
    barrier();
    if (gl_SubgroupID == gl_NumSubgroups - 1u) {
        subgroupBarrier();
        if (gl_SubgroupInvocationID == 0u) s = 7u;
    }
    barrier();
    y[0] = gl_NumSubgroups;
    if (gl_SubgroupInvocationID == 0u) y[1u + gl_SubgroupID] = s;
}
END
with sid sid/usr/bin/glslc --target-env=vulkan1.2 -O -o last.spv last.comp
echo "expected: 4 subgroups, and of each 7"
for suite in trixie sid; do
  echo "lavapipe ${!suite}: $(dispatch "$suite" "$tmp/$suite/$lib/libvulkan_lvp.so" last.spv 0 0 0 0 0)" | tee -a seen
done
[ "$(grep -c ': 4 1 1 1 7$' seen)" -eq 2 ] || { echo "this has changed"; exit 1; }
