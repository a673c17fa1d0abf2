#!/usr/bin/env bash
# Two ports of OpenAI's tokenizer to JavaScript lose U+FEFF, the byte order mark that files written
# on Windows begin with. js-tiktoken encodes it right and its decode leaves it out at the start of
# what is decoded: of a text, and of each token if they are decoded one by one, as for a stream.
# gpt-tokenizer has none of the nine tokens that begin with the mark, so "\ufeffusing", one token,
# becomes three; and its decode leaves the mark out the first time in a process, and not again.
#
# One would expect of a tokenizer of bytes that decode(encode(text)) is the text, and of a port of a
# vocabulary that its tokens are the same. A TextDecoder drops the mark unless it is told ignoreBOM,
# and one that is kept for the next text drops only the first.
set -euo pipefail
reference=1.0.22 port=1.0.21 other=4.0.0
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
{ npm init -y && npm install --no-audit --no-fund "tiktoken@$reference" "js-tiktoken@$port" "gpt-tokenizer@$other"; } >npm.log 2>&1 ||
  { cat npm.log; exit 1; }

cat >main.mjs <<'EOS'
import { get_encoding } from "tiktoken";
import { getEncoding } from "js-tiktoken";
import * as other from "gpt-tokenizer/encoding/o200k_base";

const reference = get_encoding("o200k_base"), port = getEncoding("o200k_base");
const bytes = (tokens) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(reference.decode(Uint32Array.from(tokens)));
const engines = {
  tiktoken: [(text) => Array.from(reference.encode(text)), bytes],
  "js-tiktoken": [(text) => port.encode(text), (tokens) => port.decode(tokens)],
  "gpt-tokenizer": [(text) => other.encode(text), (tokens) => other.decode(tokens)],
};
const show = (text) => JSON.stringify(text).replaceAll("\ufeff", "\\ufeff");
for (const [name, [encode, decode]] of Object.entries(engines))
  for (const text of ["\ufeffusing System", "a\ufeffb"]) {
    const tokens = encode(text);
    const twice = [decode(tokens), decode(tokens)].map(show).join(" and ");
    const pieces = show(tokens.map((token) => decode([token])).join(""));
    console.log(`${name}: ${show(text)} is ${tokens.join(" ")}, decoded ${twice}, one by one ${pieces}`);
  }
EOS
node main.mjs >seen
echo "tiktoken $reference (expected), js-tiktoken $port, gpt-tokenizer $other"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
tiktoken: "\ufeffusing System" is 9251 1219, decoded "\ufeffusing System" and "\ufeffusing System", one by one "\ufeffusing System"
tiktoken: "a\ufeffb" is 64 5574 65, decoded "a\ufeffb" and "a\ufeffb", one by one "a\ufeffb"
js-tiktoken: "\ufeffusing System" is 9251 1219, decoded "using System" and "using System", one by one "using System"
js-tiktoken: "a\ufeffb" is 64 5574 65, decoded "a\ufeffb" and "a\ufeffb", one by one "ab"
gpt-tokenizer: "\ufeffusing System" is 5416 123 1846 1219, decoded "using System" and "\ufeffusing System", one by one "\ufeffusing System"
gpt-tokenizer: "a\ufeffb" is 64 5416 123 65, decoded "a\ufeffb" and "a\ufeffb", one by one "a\ufeffb"
EOS
