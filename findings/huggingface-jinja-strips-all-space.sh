#!/usr/bin/env bash
# @huggingface/jinja, the engine of transformers.js, renders chat templates of models. Its strip(),
# lstrip() and rstrip() of strings take no argument: given one, they strip all white space and
# nothing else. Templates of models that reason part an answer with .split('</think>') and
# .rstrip('\n'), so spaces and tabs that Python's jinja2 leaves beside the newline are gone, and
# .strip('*') leaves its stars.
#
# One would expect an error where an engine does less than Python's; these render, and the prompt of
# the next turn differs from those that the model was trained with.
set -euo pipefail
engine=0.5.11 reference=3.1.2-1+deb12u3
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download -qq "python3-jinja2=$reference" python3-markupsafe=2.1.2-1+b1 2>warnings || { cat warnings; exit 1; }
for f in *.deb; do dpkg -x "$f" tree; done
npm init -y >npm.log 2>&1 && npm install --no-audit --no-fund "@huggingface/jinja@$engine" >>npm.log 2>&1 || { cat npm.log; exit 1; }

cat >cases.json <<'EOT'
["[{{ 'think </think>\n\tindented'.split('</think>')[-1].lstrip('\\n') }}]",
 "[{{ 'a line ends in two spaces  \n'.rstrip('\\n') }}]", "[{{ '**bold**'.strip('*') }}]", "[{{ ' both '.strip() }}]"]
EOT
cat >main.mjs <<'EOT'
import fs from "node:fs";
import { Template } from "@huggingface/jinja";
for (const c of JSON.parse(fs.readFileSync("cases.json"))) console.log(JSON.stringify(new Template(c).render({})));
EOT
node main.mjs >seen
PYTHONPATH=tree/usr/lib/python3/dist-packages python3 - >expected <<'EOT'
import json, jinja2
for case in json.load(open("cases.json")):
    print(json.dumps(jinja2.Environment().from_string(case).render()))
EOT
echo "jinja2 $reference (expected), @huggingface/jinja $engine (seen)"
diff --side-by-side --width=90 expected seen || true
printf '%s\n' '"[indented]"' '"[a line ends in two spaces]"' '"[**bold**]"' '"[both]"' | diff - seen >changed || { cat changed; echo "this has changed"; exit 1; }
