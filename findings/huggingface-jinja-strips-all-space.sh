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
engine=0.5.11
. "$(dirname "${BASH_SOURCE[0]}")/jinja"
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
compare "@huggingface/jinja $engine" '"[indented]"' '"[a line ends in two spaces]"' '"[**bold**]"' '"[both]"'
