#!/usr/bin/env bash
# Ollama's own tokenizer (package tokenizer, for byte-level BPE) splits a text that repeats itself
# into other tokens than the model was trained with: of 哈哈哈, laughter in Chinese, and of "?????",
# "ababab" or a line of seventeen "=". Where a pair of letters occurs several times, the leftmost is to
# be merged first; Ollama takes them from a heap that orders by rank alone, and so from both ends.
#
# One would expect the tokens of tiktoken, or of the model's tokenizer.json, which are the same. The
# text that the tokens stand for is right, as is every text in which no such pairs meet, or which is
# one token. And \s of its patterns means spaces of ASCII: two no-break spaces between words are one
# token where they should be two.
#
# The vocabulary is that of gpt-oss's text, o200k; the pattern is tiktoken's, and Ollama's too.
set -euo pipefail
reference=1.0.22 version=v0.17.4
tmp="$(mktemp -d)"
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
cd "$tmp"
{ npm init -y && npm install --no-audit --no-fund "tiktoken@$reference"; } >npm.log 2>&1 || { cat npm.log; exit 1; }

# tiktoken has ranks of tokens; a model for Ollama has pairs to be merged: the two last pieces of each.
cat >main.mjs <<'EOF'
import fs from "node:fs";
import { get_encoding } from "tiktoken";
import { createRequire } from "node:module";
const { bpe_ranks, pat_str: pattern } = createRequire(import.meta.url)("tiktoken/encoders/o200k_base.json");

const ranks = new Map();
for (const line of bpe_ranks.split("\n").filter(Boolean)) {
  const [, first, ...tokens] = line.split(" ");
  tokens.forEach((token, i) => ranks.set(Buffer.from(token, "base64").toString("latin1"), Number(first) + i));
}
const letter = (b) => b + (b === 0xad ? 0x96 : b <= 0x20 ? 0x100 : b >= 0x7f && b <= 0xa0 ? 0xa2 : 0);
const spell = (bytes) => Array.from(bytes, (b) => String.fromCharCode(letter(b.charCodeAt()))).join("");
const values = [], merges = [];
for (const [token, rank] of ranks) {
  values[rank] = spell(token);
  let pieces = [...token];
  while (pieces.length > 2) {
    const joined = pieces.slice(1).map((piece, i) => ranks.get(pieces[i] + piece) ?? Infinity);
    const first = joined.indexOf(Math.min(...joined));
    pieces.splice(first, 2, pieces[first] + pieces[first + 1]);
  }
  if (pieces.length === 2) merges.push({ rank, pair: pieces.map(spell).join(" ") });
}
const texts = ["哈哈哈", "?????", "ababab", "=".repeat(17), "a\u00a0\u00a0b", "To be, or not to be: 哈哈 1234"];
fs.writeFileSync("model.json", JSON.stringify({ texts, pattern, values,
  merges: merges.sort((a, b) => a.rank - b.rank).map(({ pair }) => pair) }));
const encoding = get_encoding("o200k_base");
for (const text of texts) console.log(`${JSON.stringify(text)}: ${encoding.encode(text).join(" ")}`);
EOF
cat >main.go <<'EOF'
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/ollama/ollama/tokenizer"
)

func main() {
	var model struct {
		Texts, Values, Merges []string
		Pattern               string
	}
	data, err := os.ReadFile("model.json")
	if err == nil {
		err = json.Unmarshal(data, &model)
	}
	if err != nil {
		log.Fatal(err)
	}
	t := tokenizer.NewBytePairEncoding(&tokenizer.Vocabulary{Values: model.Values,
		Types: make([]int32, len(model.Values)), Merges: model.Merges}, model.Pattern)
	for _, text := range model.Texts {
		tokens, err := t.Encode(text, false)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("\"%s\": %s\n", text, strings.Trim(fmt.Sprint(tokens), "[]"))
	}
}
EOF
export GOPATH="$tmp/go" GOFLAGS=-mod=mod
{ go mod init example.org/finding && go get "github.com/ollama/ollama/tokenizer@$version" && go build -o main .; } >go.log 2>&1 ||
  { cat go.log; exit 1; }
node main.mjs >expected
./main >seen
echo "tiktoken $reference (expected)"
cat expected
echo "ollama $version (seen)"
cat seen
diff - seen >changed <<EOF || { cat changed; echo "this has changed"; exit 1; }
"哈哈哈": 37985 97630
"?????": 33110 6961
"ababab": 378 68822
"=================": 17380 560 21985
"a$(printf '\u00a0\u00a0')b": 64 17725 65
$(tail -n 1 expected)
EOF
