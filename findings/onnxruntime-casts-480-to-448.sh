#!/usr/bin/env bash
# onnxruntime's Cast to float8 with saturate = 0 has a hole where it overflows: to E4M3, 465 becomes
# NaN, 480 becomes 448, and 496 NaN again; to E5M2, which has an infinity, 61440 becomes NaN and
# 65536 infinity.
#
# One would expect that a larger number does not give a smaller one: NaN from 465 on and infinity
# from 61440, as ml_dtypes makes of them. A test for overflow with one large number finds nothing
# wrong.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/onnxruntime"

cat >main.mjs <<'EOS'
import { run, whole, FLOAT, E4M3, E5M2 } from "./onnx.mjs";
for (const [name, to, x] of [["E4M3", E4M3, [448, 464, 465, 479, 480, 495, 496, 512]],
  ["E5M2", E5M2, [57344, 61439, 61440, 65535, 65536]]]) {
  const [y] = await run([["Cast", ["x"], ["code"], whole("to", to), whole("saturate", 0)], ["Cast", ["code"], ["y"], whole("to", FLOAT)]],
    [["y", FLOAT]], { x: Float32Array.from(x) });
  console.log(`${name}: ${x.map((v, i) => `${v} gives ${y[i]}`).join(", ")}`);
}
EOS
node main.mjs >seen
echo "onnxruntime-node $version"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
E4M3: 448 gives 448, 464 gives 448, 465 gives NaN, 479 gives NaN, 480 gives 448, 495 gives 448, 496 gives NaN, 512 gives NaN
E5M2: 57344 gives 57344, 61439 gives 57344, 61440 gives NaN, 65535 gives NaN, 65536 gives Infinity
EOS
