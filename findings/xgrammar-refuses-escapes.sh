#!/usr/bin/env bash
# xgrammar, with which vLLM and SGLang keep a model to a JSON schema, forgets JSON's escapes in a
# string that has a limit of length. With minLength or maxLength no string can hold a quote, a
# backslash or a line break: \" and \n are refused, though they are what JSON has for them. Without
# both keywords all three are admitted.
#
# One would expect that a limit of length limits the length. A summary with minLength 1 cannot
# contain a quotation or have two lines; the model is led to other words, and nothing says so.
#
# Needs a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/xgrammar"

cat >main.py <<'EOF'
import json
from admits import admits
texts = '"plain"', r'"say \"hi\""', r'"two\nlines"', r'"C:\\x"'
for more in {}, {"minLength": 1}, {"maxLength": 40}:
    schema = {"type": "string", **more}
    wrong = [json.dumps(json.loads(t)) for t in texts if not admits(schema, t)]
    print(json.dumps(schema) + ": refused:", ", ".join(wrong) or "none")
EOF
LD_LIBRARY_PATH="$tmp/sid/usr/lib" python sid main.py 2>log >seen || { cat log; exit 1; }
echo "xgrammar $version: expected none refused, seen"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
{"type": "string"}: refused: none
{"type": "string", "minLength": 1}: refused: "say \"hi\"", "two\nlines", "C:\\x"
{"type": "string", "maxLength": 40}: refused: "say \"hi\"", "two\nlines", "C:\\x"
EOF
