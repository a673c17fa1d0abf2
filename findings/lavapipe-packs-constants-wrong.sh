#!/usr/bin/env bash
# Mesa 25.0.7 (Debian 13) computes packSnorm4x8 of constants wrong: of vec4(0, -1, 0, 1) it is
# 0xFFFF8100, where -1 is the byte 0x81 and 1 the byte 0x7F. A negative number fills all bytes that
# come after it with ones. Of the same numbers from a buffer it is right, and 26.1.6 has both right.
#
# One would expect a function to give the same of a constant and of a variable. What Mesa's drivers
# compute ahead is theirs in common: NVK of 25.0.7 stores the same word, while RADV, which packs in
# another way, is right. A normal that a shader has as a default points elsewhere on some drivers.
#
# Needs a C compiler and a Debian mirror among apt's sources.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/dispatch"
old=25.0.7-2+deb13u1 new=26.1.6-1~bpo13+1
get trixie libvulkan1 libvulkan-dev glslc "mesa-vulkan-drivers=$old"
get trixie-backports libvulkan1 "mesa-vulkan-drivers=$new"

cat >pack.comp <<'EOF'
#version 460
layout(local_size_x = 1) in;
layout(std430, set = 0, binding = 0) buffer X { uint x[4]; };
void main() {
    const vec4 numbers = uintBitsToFloat(uvec4(x[0], x[1], x[2], x[3]));
    x[0] = packSnorm4x8(numbers);
    x[1] = packSnorm4x8(vec4(0.0, -1.0, 0.0, 1.0));
    x[2] = packUnorm4x8(vec4(0.0, -1.0, 0.0, 1.0));
    x[3] = packSnorm2x16(vec2(-1.0, 0.0));
}
EOF
with trixie trixie/usr/bin/glslc --target-env=vulkan1.2 -O -o pack.spv pack.comp
for suite in trixie trixie-backports; do
  dispatch "$suite" "$tmp/$suite/$lib/libvulkan_lvp.so" pack.spv 0 bf800000 0 3f800000
done >seen
echo "packSnorm4x8 of variables and of constants, packUnorm4x8 and packSnorm2x16 of constants; lavapipe $old and $new"
echo "expected: 7f008100 7f008100 ff000000 8001"
sed 's/^/seen:     /' seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
7f008100 ffff8100 ff000000 8001
7f008100 7f008100 ff000000 8001
EOF
