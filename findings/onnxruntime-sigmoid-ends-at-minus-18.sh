#!/usr/bin/env bash
# onnxruntime's Sigmoid of -17 is 8.9e-8, twice what it should be, and from -18 down it is 0, where
# float32 has numbers down to -103: at -20 the true value is 2.1e-9. At -10 the fourth digit is
# wrong already. Neg, Exp, Add and Div in its place are right to the last bits.
#
# One would expect a function of one number to be right within a few bits, as Exp and Softmax are
# here. The error is below 1e-7 as a difference, and unbounded as a ratio: Log of it is -infinity,
# and a router that divides its scores by their sum, all of them small, divides 0 by 0.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/onnxruntime"

cat >main.mjs <<'EOS'
import { run, FLOAT } from "./onnx.mjs";
const x = Float32Array.of(-5, -10, -15, -17, -18, -20), one = Float32Array.of(1);
const [node] = await run([["Sigmoid", ["x"], ["y"]]], [["y", FLOAT]], { x });
const [parts] = await run([["Neg", ["x"], ["n"]], ["Exp", ["n"], ["e"]], ["Add", ["e", "one"], ["d"]], ["Div", ["one", "d"], ["y"]]],
  [["y", FLOAT]], { x, one });
let wrong = 0;
x.forEach((v, i) => {
  const right = 1 / (1 + Math.exp(-v));
  const off = [node[i], parts[i]].map((y) => Math.abs(y / right - 1));
  wrong += off[1] > 1e-6;
  wrong += (v === -17 && off[0] < 0.5) || (v <= -18 && node[i] !== 0);
  console.log(`of ${v}: expected ${right.toPrecision(4)}, seen ${node[i].toPrecision(4)}, by parts ${parts[i].toPrecision(4)}`);
});
process.exit(wrong ? 1 : 0);
EOS
echo "onnxruntime-node $version"
node main.mjs || { echo "this has changed"; exit 1; }
