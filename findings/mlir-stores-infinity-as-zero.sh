#!/usr/bin/env bash
# MLIR of LLVM 22 has three answers to what infinity is as FP4 (f4E2M1FN, the numbers of MXFP4 and
# NVFP4), which has neither infinity nor NaN. Where the number is known to the compiler,
# arith.truncf of it is stored as the code 0, which is zero, and -infinity as -0; if the code is
# converted back in the same function it is infinity again. Where the number comes at run time,
# arith-expand makes the code 7, which is 6, the largest. NaN is 0, NaN and 6. For finite numbers,
# too large ones as well, all three agree.
#
# One would expect that to fold a constant changes no result, and that a number beyond the range
# becomes the largest, as ml_dtypes has it for FP4. A bound of infinity, folded into a table of
# codes, is 0.
#
# Needs a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
version=1:22.1.8-3
get sid "mlir-22-tools=$version"
llvm=sid/usr/lib/llvm-22

# converted NUMBER HOW RESULT: what a program gives that converts a number in HOW, constant or call, to
# FP4, and returns its code or its number.
converted() {
  local y='func.call @convert(%x) : (f32) -> f4E2M1FN' type=f32 z='%z = arith.extf %y : f4E2M1FN to f32'
  [ "$2" = call ] || y='arith.truncf %x : f32 to f4E2M1FN'
  [ "$3" = number ] || { type=i32 z='%b = arith.bitcast %y : f4E2M1FN to i4 %z = arith.extui %b : i4 to i32'; }
  cat >main.mlir <<EOF
func.func private @convert(%x: f32) -> f4E2M1FN attributes {no_inline} {
  %y = arith.truncf %x : f32 to f4E2M1FN
  return %y : f4E2M1FN
}
func.func @main() -> $type {
  %x = arith.constant $1 : f32
  %y = $y
  $z
  return %z : $type
}
EOF
  local passes='canonicalize,arith-expand{include-f4e2m1=true},convert-arith-to-llvm,convert-func-to-llvm,reconcile-unrealized-casts'
  with sid "$llvm/bin/mlir-opt" "--pass-pipeline=builtin.module($passes)" main.mlir |
    with sid "$llvm/bin/mlir-runner" -e main "--entry-point-result=$type" \
      "--shared-libs=$tmp/$llvm/lib/libmlir_c_runner_utils.so.22.1"
}
for number in 5.0 1000.0 0x7F800000 0xFF800000 0x7FC00000; do
  for how in constant call; do
    echo "$number, $how: code $(converted "$number" "$how" code), number $(converted "$number" "$how" number)"
  done
done >seen
echo "MLIR $version; 0x7F800000 and 0xFF800000 are infinities, 0x7FC00000 is NaN"
echo "expected of each number the same line twice, seen"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
5.0, constant: code 7, number 6.000000e+00
5.0, call: code 7, number 6.000000e+00
1000.0, constant: code 7, number 6.000000e+00
1000.0, call: code 7, number 6.000000e+00
0x7F800000, constant: code 0, number INF
0x7F800000, call: code 7, number 6.000000e+00
0xFF800000, constant: code 8, number -INF
0xFF800000, call: code 15, number -6.000000e+00
0x7FC00000, constant: code 0, number nan
0x7FC00000, call: code 7, number 6.000000e+00
EOF
