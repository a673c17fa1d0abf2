#!/usr/bin/env bash
# PyTorch 2.14 converts infinity, and whatever is too large, to 448 in float8_e4m3fn. PyTorch 2.6
# makes NaN of both, as ml_dtypes does, and to float8_e5m2 2.14 still converts them to infinity. To
# float8_e8m0fnu, the type of MXFP4's scales, it drops the sign: -2 becomes 2, and 0 becomes 2^-127,
# where ml_dtypes makes NaN of each.
#
# One would expect that infinity stays infinity or becomes NaN, in each type and release alike, and
# that a negative scale, which the type cannot say, becomes NaN. A tensor that overflowed looks
# sound after it is quantised, and so does a scale of the wrong sign.
#
# Needs a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
torch=2.14.1+dfsg-1 types=0.5.4-2+b2
get sid "python3-torch=$torch" "python3-ml-dtypes=$types"

cat >main.py <<'EOS'
import ml_dtypes, numpy as np, torch
np.seterr(all="ignore")
inf = float("inf")
cases = {"float8_e4m3fn": [448, 464, 480, 1e6, inf], "float8_e5m2": [57344, 1e6, inf], "float8_e8m0fnu": [1, 3, 0, -1, -2, inf]}
for name, numbers in cases.items():
    print(name, "of", *numbers)
    print("  ml_dtypes", *np.array(numbers, np.float32).astype(getattr(ml_dtypes, name)).astype(np.float32))
    print("  torch    ", *torch.tensor(numbers).to(getattr(torch, name)).float().numpy())
EOS
python sid main.py >seen
echo "torch $torch, ml_dtypes $types"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
float8_e4m3fn of 448 464 480 1000000.0 inf
  ml_dtypes 448.0 448.0 nan nan nan
  torch     448.0 448.0 448.0 448.0 448.0
float8_e5m2 of 57344 1000000.0 inf
  ml_dtypes 57344.0 inf inf
  torch     57344.0 inf inf
float8_e8m0fnu of 1 3 0 -1 -2 inf
  ml_dtypes 1.0 4.0 nan nan nan nan
  torch     1.0 4.0 5.877472e-39 1.0 2.0 nan
EOS
