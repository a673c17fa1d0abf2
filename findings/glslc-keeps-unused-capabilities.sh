#!/usr/bin/env bash
# glslc -Os removes a branch that is never taken, and leaves the capabilities that only the branch
# needs: the module has no f16, no 64-bit integer and no address any more, and still declares
# Float16, Int64 and PhysicalStorageBufferAddresses, so that Vulkan forbids it on a device without
# these features (VUID-VkShaderModuleCreateInfo-pCode-08740).
#
# One would expect that a constant `false` makes a variant for devices without the features. It
# takes #ifdef, or spirv-opt --trim-capabilities where that knows the capability.
#
# Needs apt with Debian 12 (bookworm) among its sources. Seen the same with 2026.4.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/glslc"

cat >branch.comp <<'EOF'
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x = 1) in;
const bool FAST = false;
layout(std430, set = 0, binding = 0) buffer X { uint v[]; } x;
layout(push_constant) uniform Push { uvec2 at; } pc;
layout(buffer_reference, std430) readonly buffer At { uint v; };
void main() {
    if (FAST) {
        f16vec2 h = unpackFloat2x16(At(packUint2x32(pc.at)).v);
        x.v[0] = packFloat2x16(h + h);
    } else x.v[0] += 1u;
}
EOF
glslc --target-env=vulkan1.2 -Os -o branch.spv branch.comp
spirv-val --target-env vulkan1.2 branch.spv
spirv-dis --no-color branch.spv >branch.txt
grep -E 'OpCapability|OpTypeFloat 16|OpTypeInt 64|OpTypePointer PhysicalStorageBuffer' branch.txt
types=$(grep -cE 'OpTypeFloat 16|OpTypeInt 64|OpTypePointer PhysicalStorageBuffer' branch.txt || true)
capabilities=$(grep -cE 'OpCapability (Float16|Int64|PhysicalStorageBufferAddresses)$' branch.txt || true)
echo "expected: 0 types and 0 capabilities; seen: $types types and $capabilities capabilities"
[ "$types" -eq 0 ] && [ "$capabilities" -eq 3 ] || { echo "this has changed"; exit 1; }
