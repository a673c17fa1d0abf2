#!/usr/bin/env bash
# numpy's mean of a thousand ones is 0.256 if they are bfloat16 of ml_dtypes, and 0.0156 for
# float8_e4m3fn: the sum is rounded after each addition and stops at 256, where 256 + 1 is 256. Of
# float16, which is as narrow, the mean is 1. np.dot(x, x) of E4M3 is NaN, x @ x is 1000: two
# spellings of one product differ in the type of the result.
#
# One would expect of all three what numpy does for float16: it sums in pairs, and takes means in
# float32. That is written for float16 alone; a type from outside gets a plain loop, without an
# error or a warning. A mean square of a reference in bfloat16 is wrong from some 256 values on.
# dtype=np.float32 in the call avoids it.
#
# Needs a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
numpy=1:2.4.6+ds-5+b1 types=0.5.4-2+b2
get sid "python3-numpy=$numpy" "python3-ml-dtypes=$types"

cat >main.py <<'EOS'
import numpy as np, ml_dtypes
np.seterr(all="ignore")
for d in np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn:
    x = np.ones(1000, d)
    y = x @ x
    print(f"{np.dtype(d).name}: mean {float(x.mean())}, sum {float(x.sum())}, dot {float(np.dot(x, x))}, @ {float(y)} in {y.dtype}")
EOS
python sid main.py >seen
echo "numpy $numpy, ml_dtypes $types"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
float16: mean 1.0, sum 1000.0, dot 1000.0, @ 1000.0 in float16
bfloat16: mean 0.255859375, sum 256.0, dot 1000.0, @ 1000.0 in float32
float8_e4m3fn: mean 0.015625, sum 16.0, dot nan, @ 1000.0 in float32
EOS
