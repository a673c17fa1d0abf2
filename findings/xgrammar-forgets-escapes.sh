#!/usr/bin/env bash
# xgrammar, with which vLLM and SGLang keep a model to a JSON schema, forgets JSON's escapes in a
# string that has a length or a pattern. With minLength or maxLength no string can hold a quote, a
# backslash or a line break: \" and \n are refused, though they are what JSON has for them, and a
# raw control character is let through. With a pattern such as ^.{1,40}$ the answer may be "say
# "hi"" or "C:\x", or go on in a new line, none of which is JSON. Without both keywords each is
# right.
#
# One would expect that a limit of length limits the length, and that what is promised to be JSON
# always is. A summary with minLength 1 cannot contain a quotation or have two lines; the model is
# led to other words, and nothing says so.
#
# Needs a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
version=0.2.3-2
get sid "python3-xgrammar=$version"

cat >main.py <<'EOF'
import json, xgrammar
tokens = [bytes([i]) for i in range(256)] + [b"end"]
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(tokens, stop_token_ids=[256]))
def admits(schema, text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema))
    return matcher.accept_string(text) and matcher.accept_token(256)
def is_json(text):
    try: json.loads(text)
    except ValueError: return False
    return True
texts = ['"plain"', r'"say \"hi\""', r'"two\nlines"', r'"C:\\x"', '"say "hi""', '"two\nlines"', r'"C:\x"', '"\x01"']
for more in {}, {"minLength": 1}, {"maxLength": 40}, {"pattern": "^.{1,40}$"}:
    schema = {"type": "string", **more}
    print(json.dumps(schema))
    for kind, wanted in ("refused, though JSON", True), ("admitted, though not JSON", False):
        wrong = [json.dumps(t) for t in texts if is_json(t) == wanted and admits(schema, t) != wanted]
        print(f"  {kind}:", ", ".join(wrong) or "none")
EOF
LD_LIBRARY_PATH="$tmp/sid/usr/lib" python sid main.py 2>log >seen || { cat log; exit 1; }
echo "xgrammar $version: expected none each time, seen (as strings of JSON)"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
{"type": "string"}
  refused, though JSON: none
  admitted, though not JSON: none
{"type": "string", "minLength": 1}
  refused, though JSON: "\"say \\\"hi\\\"\"", "\"two\\nlines\"", "\"C:\\\\x\""
  admitted, though not JSON: "\"\u0001\""
{"type": "string", "maxLength": 40}
  refused, though JSON: "\"say \\\"hi\\\"\"", "\"two\\nlines\"", "\"C:\\\\x\""
  admitted, though not JSON: "\"\u0001\""
{"type": "string", "pattern": "^.{1,40}$"}
  refused, though JSON: none
  admitted, though not JSON: "\"say \"hi\"\"", "\"two\nlines\"", "\"C:\\x\"", "\"\u0001\""
EOF
