#!/usr/bin/env bash
# numpy's functions for NaN do nothing, or something else, for NaNs of ml_dtypes' bfloat16 and
# float8:
#   - np.sort leaves the array out of order, where it should put NaNs last; so do argsort and
#     partition;
#   - np.median of numbers with a NaN is a number, not the middle one of the others;
#   - np.nansum is NaN and np.nan_to_num keeps it; np.nanmax and np.isnan are right;
#   - np.testing.assert_array_equal says that an array with a NaN differs from itself, where
#     assert_allclose says that it does not.
#
# One would expect what numpy's documents say, or a TypeError as from np.einsum. The care for NaN is
# written for numpy's own types; a type from outside passes for one that has none. A top-k or a
# median of such scores is wrong as soon as one is NaN. x.astype(np.float32), which is exact, avoids
# it.
#
# Needs a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
numpy=1:2.4.6+ds-5+b1 types=0.5.4-2+b2
get sid "python3-numpy=$numpy" "python3-ml-dtypes=$types"

cat >main.py <<'EOS'
import numpy as np, ml_dtypes
def equal(a, b):
    try: np.testing.assert_array_equal(a, b)
    except AssertionError: return "differs"
    return "equal"
for d in np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn:
    x = np.array([5, float("nan"), 1, 2, 3], d)
    said = {"sort": np.sort(x), "median": np.median(x), "nansum": np.nansum(x), "nan_to_num": np.nan_to_num(x), "nanmax": np.nanmax(x)}
    print(np.dtype(d).name + ":", *(f"{k} {np.float32(v)}" for k, v in said.items()), equal(x, x))
EOS
python sid main.py >seen
echo "numpy $numpy, ml_dtypes $types"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
float16: sort [ 1.  2.  3.  5. nan] median nan nansum 11.0 nan_to_num [5. 0. 1. 2. 3.] nanmax 5.0 equal
bfloat16: sort [ 5. nan  1.  2.  3.] median 1.0 nansum nan nan_to_num [ 5. nan  1.  2.  3.] nanmax 5.0 differs
float8_e4m3fn: sort [ 5. nan  1.  2.  3.] median 1.0 nansum nan nan_to_num [ 5. nan  1.  2.  3.] nanmax 5.0 differs
EOS
