#!/usr/bin/env bash
# Ollama's client for Python fails in the middle of an answer that has the character U+0085, NEXT
# LINE, where text of Windows with an ellipsis was once read as Latin-1: JSONDecodeError,
# "Unterminated string". Ollama sends a line of JSON for each piece. The client has httpx part
# them, which decodes first and then ends a line wherever Python's splitlines does. Of the
# characters that do so, JSON escapes those below U+0020 and the encoder of Go, in which Ollama's
# server is written, U+2028 and U+2029 besides. U+0085 passes, and the same answer without
# streaming is read.
#
# One would expect that a line of JSON ends at a line feed, as Ollama's npm client and httpx-sse,
# another reader above httpx, have it; or, once U+2028 does no harm, that no such character does.
#
# Needs Go and a Debian mirror among apt's sources, for packages of sid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
version=0.6.3-1 httpx=0.28.1-2
get sid "python3-ollama=$version" "python3-httpx=$httpx"

cat >main.go <<'EOF'
package main

import (
	"encoding/json"
	"os"
)

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// A server's answer: a line for each piece.
func main() {
	pieces := []string{"one ", "and \u2028two ", "and so on\u0085 ", "three"}
	lines := json.NewEncoder(os.Stdout)
	for i, piece := range pieces {
		lines.Encode(map[string]any{"model": "m", "message": message{"assistant", piece}, "done": i == len(pieces)-1})
	}
}
EOF
cat >main.py <<'EOF'
import httpx, json, ollama
body = open("answer", "rb").read()
pieces = [json.loads(line)["message"]["content"] for line in body.split(b"\n") if line]
print("lines:   ", *map(json.dumps, pieces))
client = ollama.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=body)))
seen = []
try:
    for part in client.chat(model="m", messages=[], stream=True): seen.append(json.dumps(part.message.content))
except ValueError as e: seen.append(f"{type(e).__name__}: {e}")
print("streamed:", *seen)
message = {"role": "assistant", "content": "".join(pieces)}
whole = json.dumps({"model": "m", "message": message, "done": True}, ensure_ascii=False).encode()
client = ollama.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=whole)))
print("whole:   ", json.dumps(client.chat(model="m", messages=[]).message.content))
EOF
go run main.go >answer
python sid main.py >seen
echo "python3-ollama $version, httpx $httpx: expected the pieces of the lines, seen"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
lines:    "one " "and \u2028two " "and so on\u0085 " "three"
streamed: "one " "and \u2028two " JSONDecodeError: Unterminated string starting at: line 1 column 55 (char 54)
whole:    "one and \u2028two and so on\u0085 three"
EOF
