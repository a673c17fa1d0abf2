#!/usr/bin/env bash
# onnxruntime's TopK of seventeen numbers, one of them NaN, leaves out the largest: of 1, NaN, 3, 4
# ... 17 the first four are 4, 3, 1 and NaN; with the NaN last they are 16, 15, 14 and 13, as if it
# were the smallest. Unique of NaN and the numbers 2 to 17 is NaN alone. ReduceMax is NaN where the
# first number is, and else the largest of the others.
#
# One would expect NaN to be taken for the largest, as by numpy and PyTorch, or for the smallest.
# Here its place decides which of the other numbers are seen: a search over scores returns wrong
# places, and nothing in them shows it. IsNaN and Where in front of the node avoid it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/onnxruntime"

cat >main.mjs <<'EOS'
import { run, FLOAT, INT64 } from "./onnx.mjs";
const k = BigInt64Array.of(4n);
for (const at of [0, 1, 8, 16]) {
  const x = Float32Array.from({ length: 17 }, (_, i) => (i === at ? NaN : i + 1));
  const [top] = await run([["TopK", ["x", "k"], ["y", "places"]]], [["y", FLOAT], ["places", INT64]], { x, k });
  const [max] = await run([["ReduceMax", ["x"], ["y"]]], [["y", FLOAT]], { x });
  const [unique] = await run([["Unique", ["x"], ["y"]]], [["y", FLOAT]], { x });
  console.log(`NaN at ${at}: TopK ${top.join(" ")}; ReduceMax ${max}; Unique ${unique.length} of 17`);
}
EOS
node main.mjs >seen
echo "onnxruntime-node $version: expected NaN 17 16 15, or without NaN"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
NaN at 0: TopK 17 16 NaN 15; ReduceMax NaN; Unique 1 of 17
NaN at 1: TopK 4 3 1 NaN; ReduceMax 17; Unique 16 of 17
NaN at 8: TopK 17 16 15 14; ReduceMax 17; Unique 16 of 17
NaN at 16: TopK 16 15 14 13; ReduceMax 16; Unique 16 of 17
EOS
