#!/usr/bin/env bash
# SwiftShader, the Vulkan driver to which Chromium falls back without a GPU, makes NaN of numbers that
# are merely large: tanh(89.0) is NaN, as is that of any larger one, and packHalf2x16, the way to
# halves on a driver that has no float16_t, makes NaN of 70000 and of -1e6 (0x7C46 and 0xFFFF).
#
# One would expect 1 of tanh, as C's has it and lavapipe's, though Vulkan lets it be sinh / cosh; and
# infinity, or the largest half, of a number that does not fit. GELU by its usual formula takes tanh
# of 89 for 13: a kernel that is right on every GPU has NaN in tests on machines without one.
#
# SwiftShader is that of an npm package with Chromium 153. Needs a C compiler and a Debian mirror
# among apt's sources. Seen the same with Debian's Chromium 156.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/dispatch"
version=153.0.0
get trixie libvulkan1 libvulkan-dev glslc mesa-vulkan-drivers=25.0.7-2+deb13u1
{ npm init -y && npm install --no-audit --no-fund --ignore-scripts "@sparticuz/chromium@$version"; } >npm.log 2>&1 ||
  { cat npm.log; exit 1; }
mkdir swiftshader
node -e 'process.stdout.write(require("zlib").brotliDecompressSync(require("fs").readFileSync(process.argv[1])))' \
  node_modules/@sparticuz/chromium/bin/swiftshader.tar.br | tar -x -C swiftshader

cat >large.comp <<'EOF'
#version 460
layout(local_size_x = 8) in;
layout(std430, set = 0, binding = 0) buffer X { uint x[]; };
void main() {
    const uint i = gl_LocalInvocationIndex;
    const float number = uintBitsToFloat(x[i]);
    x[i] = i < 4u ? floatBitsToUint(tanh(number)) : packHalf2x16(vec2(number, 0.0));
}
EOF
with trixie trixie/usr/bin/glslc --target-env=vulkan1.2 -O -o large.spv large.comp
# run DRIVER: tanh of 10, 88, 89 and 1e6; halves of 65504, 70000, 1e6 and -1e6.
run() {
  echo "$(basename "$1"): $(dispatch trixie "$tmp/$1" large.spv 41200000 42b00000 42b20000 49742400 477fe000 4788b800 49742400 c9742400)"
}
{ run "trixie/$lib/libvulkan_lvp.so" && run swiftshader/libvk_swiftshader.so; } >seen
echo "expected (lavapipe), SwiftShader of @sparticuz/chromium $version (seen)"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
libvulkan_lvp.so: 3f800000 3f800000 3f800000 3f800000 7bff 7c00 7c00 fc00
libvk_swiftshader.so: 3f800000 3f800000 ffc00000 ffc00000 7bff 7c46 ffff ffff
EOF
