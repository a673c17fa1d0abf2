#!/usr/bin/env bash
# xgrammar, with which vLLM and SGLang keep a model to a JSON schema, makes it write other numbers
# than the schema has. For {"const": 0.1} the only answer is 0.10000000000000001, of {"enum":
# [0.3, 0.7]} are left 0.29999999999999999 and 0.69999999999999996, and of 1e-7
# 9.9999999999999995e-08; 0.1 is refused. For the number 12345678901234567890 it is
# 1.2345678901234567e+19. A minimum or maximum, whatever it is, takes the exponent away and all
# but six digits after the point: with a minimum of 0, neither 1e-7 nor 0.1234567 is left.
#
# One would expect the number to be spelled as in the schema, and of a minimum that it excludes
# smaller numbers only. A model that means 0.1 is led through sixteen digits that it would never
# write, each with a chance to leave the track; a probability with "minimum": 0 below 5e-7 becomes
# 0.
#
# Needs a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/xgrammar"

cat >main.py <<'EOF'
import json
from admits import admits
for schema, texts in [
    ('{"const": 0.1}', "0.1 0.10000000000000001"),
    ('{"enum": [0.3, 0.7]}', "0.3 0.29999999999999999 0.7 0.69999999999999996"),
    ('{"const": 1e-7}', "1e-7 9.9999999999999995e-08"),
    ('{"const": 12345678901234567890}', "12345678901234567890 1.2345678901234567e+19"),
    ('{"type": "number"}', "0.123456 0.1234567 0.0000001 1e-7"),
    ('{"type": "number", "minimum": 0}', "0.123456 0.1234567 0.0000001 1e-7"),
]:
    print(schema, *(f"{t} {'admitted' if admits(json.loads(schema), t) else 'refused'}" for t in texts.split()), sep=", ")
EOF
LD_LIBRARY_PATH="$tmp/sid/usr/lib" python sid main.py 2>log >seen || { cat log; exit 1; }
echo "xgrammar $version: expected of each the first, and those of the last two lines, admitted"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
{"const": 0.1}, 0.1 refused, 0.10000000000000001 admitted
{"enum": [0.3, 0.7]}, 0.3 refused, 0.29999999999999999 admitted, 0.7 refused, 0.69999999999999996 admitted
{"const": 1e-7}, 1e-7 refused, 9.9999999999999995e-08 admitted
{"const": 12345678901234567890}, 12345678901234567890 refused, 1.2345678901234567e+19 admitted
{"type": "number"}, 0.123456 admitted, 0.1234567 admitted, 0.0000001 admitted, 1e-7 admitted
{"type": "number", "minimum": 0}, 0.123456 admitted, 0.1234567 refused, 0.0000001 refused, 1e-7 refused
EOF
