#!/usr/bin/env bash
# onnxruntime computes a graph that is typed float16 in float32 on x86-64, without rounding between
# the nodes, and drops the rounding of Casts that the model has. x goes to float16, is squared, and
# goes back to float: 0.1 gives 0.01, not the square of the half nearest to 0.1, and 300 gives
# 90000, which no float16 can be. With graphOptimizationLevel "disabled" it is the same. Two Casts
# with nothing between them do round.
#
# One would expect that a model's types are those of its values: where a machine has no arithmetic
# of halves, float32 rounded after each node. A model that was tried there for overflow gives
# infinity elsewhere, and a Cast that is there to quantise does nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/onnxruntime"

cat >main.mjs <<'EOS'
import { run, whole, FLOAT, FLOAT16 } from "./onnx.mjs";
const x = Float32Array.of(0.1, 300);
const half = ["Cast", ["x"], ["half"], whole("to", FLOAT16)];
for (const graphOptimizationLevel of ["all", "disabled"]) {
  const options = { graphOptimizationLevel };
  const [cast] = await run([half, ["Cast", ["half"], ["y"], whole("to", FLOAT)]], [["y", FLOAT]], { x }, options);
  const [square] = await run([half, ["Mul", ["half", "half"], ["square"]], ["Cast", ["square"], ["y"], whole("to", FLOAT)]],
    [["y", FLOAT]], { x }, options);
  console.log(`${graphOptimizationLevel}: as halves ${cast.join(" ")}, squared ${square.join(" ")}`);
}
EOS
python3 - >expected <<'EOS'
import struct
def half(x):
    try: return struct.unpack("e", struct.pack("e", x))[0]
    except OverflowError: return float("inf")
x = [half(0.1), half(300)]
for level in "all", "disabled":
    print(f"{level}: as halves {x[0]} {x[1]:g}, squared {half(x[0] * x[0])} {half(x[1] * x[1])}".replace("inf", "Infinity"))
EOS
node main.mjs >seen
echo "onnxruntime-node $version, expected:"
cat expected
echo "seen:"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
all: as halves 0.0999755859375 300, squared 0.010000000707805157 90000
disabled: as halves 0.0999755859375 300, squared 0.010000000707805157 90000
EOS
