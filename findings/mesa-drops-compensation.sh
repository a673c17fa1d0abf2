#!/usr/bin/env bash
# In WebGPU on Mesa's drivers a compensated sum is a plain one. Kahan's, of a million times 0.1,
# is 100958.34 as without it, where 100000 is due: what an addition has lost, (t - s) - y where t
# is s + y, is taken for 0. (x + 12582912) - 12582912, which rounds to an integer, is x. Deno,
# with Firefox's compiler of WGSL, and Dawn, Chrome's, give the same on Mesa 25.0.7 and 26.1.6.
#
# One would expect a compiler to fuse a product and a sum at most, and else to keep the order, as
# those of C and CUDA do. Vulkan allows more unless an operation is decorated NoContraction. GLSL
# has `precise` for that, WGSL has nothing, and neither compiler decorates. To go by way of
# integers, bitcast<f32>(bitcast<u32>(t)), does not help: only a number that the driver does not
# know does, such as a zero from a buffer, added to the bits.
#
# Executes on Mesa's software driver; the rule is NIR's, which Mesa's drivers share. Needs a
# Debian mirror among apt's sources.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
deno=2.9.6 dawn=0.6.2
get trixie libvulkan1 mesa-vulkan-drivers=25.0.7-2+deb13u1
get trixie-backports libvulkan1 mesa-vulkan-drivers=26.1.6-1~bpo13+1
{ npm init -y && npm install --no-audit --no-fund --ignore-scripts "deno@$deno" "webgpu@$dawn"; } >npm.log 2>&1 || { cat npm.log; exit 1; }

cat >main.mjs <<'EOF'
let gpu = globalThis.navigator?.gpu;
if (!globalThis.Deno) {
  const dawn = await import("webgpu");
  Object.assign(globalThis, dawn.globals);
  gpu = dawn.create([]);
}
const device = await (await gpu.requestAdapter()).requestDevice();
// run(body, numbers) gives the first of a shader's numbers, x, in a buffer with those and a zero, of u32.
async function run(body, ...numbers) {
  const code = `@group(0) @binding(0) var<storage, read_write> x: array<f32, 4>;
    @group(0) @binding(1) var<storage, read> zero: u32;
    @compute @workgroup_size(1) fn main() { ${body} }`;
  const pipeline = device.createComputePipeline({ layout: "auto", compute: { module: device.createShaderModule({ code }) } });
  const buffer = (usage) => device.createBuffer({ size: 16, usage });
  const x = buffer(GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST), zero = buffer(GPUBufferUsage.STORAGE);
  const out = buffer(GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
  device.queue.writeBuffer(x, 0, Float32Array.from(numbers));
  const entries = [{ binding: 0, resource: { buffer: x } }];
  if (body.includes("zero")) entries.push({ binding: 1, resource: { buffer: zero } });
  const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
  pass.dispatchWorkgroups(1);
  pass.end();
  encoder.copyBufferToBuffer(x, 0, out, 0, 16);
  device.queue.submit([encoder.finish()]);
  await out.mapAsync(GPUMapMode.READ);
  return new Float32Array(out.getMappedRange())[0];
}
const sum = (add) => `let v = x[0]; let n = i32(x[1]); var s = 0.0; var c = 0.0; for (var i = 0; i < n; i++) { ${add} } x[0] = s;`;
const kahan = (t) => sum(`let y = v - c; let t = s + y; c = (${t} - s) - y; s = t;`);
const results = {
  plain: await run(sum("s += v;"), 0.1, 1e6), Kahan: await run(kahan("t"), 0.1, 1e6),
  "by bitcasts": await run(kahan("bitcast<f32>(bitcast<u32>(t))"), 0.1, 1e6),
  "by a zero": await run(kahan("bitcast<f32>(bitcast<u32>(t) + zero)"), 0.1, 1e6),
  "1.5 rounded": await run("x[0] = (x[0] + 12582912.0) - 12582912.0;", 1.5),
};
console.log([globalThis.Deno ? "Deno" : "Dawn", ...Object.entries(results).map(([name, number]) => `${name} ${number}`)].join(", "));
(globalThis.Deno ?? process).exit(0);
EOF
echo "Deno $deno, Dawn $dawn: expected of Kahan and those by bitcasts and by a zero 100000, 1.5 rounded 2; seen"
for suite in trixie trixie-backports; do
  printf '{"file_format_version": "1.0.1", "ICD": {"library_path": "%s", "api_version": "1.3.0"}}\n' \
    "$tmp/$suite/$lib/libvulkan_lvp.so" >icd.json
  export VK_DRIVER_FILES="$tmp/icd.json" VK_LOADER_LAYERS_DISABLE='*' NODEVICE_SELECT=1
  for program in "node_modules/@deno/linux-$(uname -m | sed s/x86_64/x64/)-glibc/deno run -A --unstable-webgpu" "$(command -v node)"; do
    # shellcheck disable=SC2086
    with "$suite" $program main.mjs 2>log || { cat log; exit 1; }
  done
done | tee seen
same='plain 100958.34375, Kahan 100958.34375, by bitcasts 100958.34375, by a zero 100000, 1.5 rounded 1.5'
printf '%s\n' "Deno, $same" "Dawn, $same" "Deno, $same" "Dawn, $same" | diff - seen >changed ||
  { cat changed; echo "this has changed"; exit 1; }
