#!/usr/bin/env bash
# PyTorch's gradient of an embedding in bfloat16 stops at 256 on the CPU: for a token that occurs
# 4000 times, with a gradient of 1 each, it is 256. The same rows taken by index_select give 4000,
# by w[rows] again 256. index_add of 4000 ones to one number is 256, and of 4000 rows of two numbers
# 4000. The mean of 4000 ones by segment_reduce is 0.064.
#
# One would expect that PyTorch adds narrow types in float32, as its sum, mean, cumsum and
# scatter_add do; or that functions which say the same of one tensor agree. Some round after each
# addition, and 256 + 1 rounds to 256 in bfloat16. Frequent tokens learn the slowest, and nothing
# warns of it.
#
# Needs a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
torch=2.14.1+dfsg-1
get sid "python3-torch=$torch"

cat >main.py <<'EOS'
import torch
n, bf16 = 4000, torch.bfloat16
rows, ones = torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=bf16)
def gradient(take):
    w = torch.ones(1, 2, dtype=bf16, requires_grad=True)
    take(w).sum().backward()
    return w.grad[0, 0].item()
print("gradient: embedding", gradient(lambda w: torch.nn.functional.embedding(rows, w)), "w[rows]", gradient(lambda w: w[rows]),
      "index_select", gradient(lambda w: w.index_select(0, rows)))
print("sum", ones.sum().item(), "scatter_add", torch.zeros(1, dtype=bf16).scatter_add(0, rows, ones).item(),
      "index_add", torch.zeros(1, dtype=bf16).index_add(0, rows, ones).item(),
      "of rows", torch.zeros(1, 2, dtype=bf16).index_add(0, rows, ones[:, None].expand(n, 2))[0, 0].item())
print("mean", ones.mean().item(), "by segment", torch.segment_reduce(ones, "mean", lengths=torch.tensor([n])).item())
EOS
python sid main.py >seen
echo "torch $torch: expected gradients and sums of 4000, means of 1"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
gradient: embedding 256.0 w[rows] 256.0 index_select 4000.0
sum 4000.0 scatter_add 4000.0 index_add 256.0 of rows 4000.0
mean 1.0 by segment 0.06396484375
EOS
