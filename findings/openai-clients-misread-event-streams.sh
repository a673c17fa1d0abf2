#!/usr/bin/env bash
# Clients of OpenAI's API read a valid stream of events, each in its own way, as if it were less:
#   - openai-go takes a stream whose lines end in CR for an empty one, without an error;
#   - it loses the first event of a stream that begins with a byte order mark, without an error;
#   - openai of npm fails at an event that has a name and no data, as a server may send to keep a
#     connection alive.
# Each reads what the other does not.
#
# One would expect that both follow the HTML standard, whose format it is: CR ends a line, the mark
# is skipped, and an event without data is dropped. A server that is tried with one client may say
# nothing to another. LF, no mark, and a comment (": ping") to keep alive serve both.
set -euo pipefail
npm=7.59.0 go=v3.99.0
tmp="$(mktemp -d)"
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
cd "$tmp"
{ npm init -y && npm install --no-audit --no-fund "openai@$npm"; } >npm.log 2>&1 || { cat npm.log; exit 1; }

cat >main.mjs <<'EOS'
import fs from "node:fs";
import { Stream } from "openai/streaming";

const events = (...data) => data.map((d) => `data: ${d}\n\n`).join("");
const whole = events('{"text":"one "}', '{"text":"two"}', "[DONE]");
const streams = {
  LF: whole,
  CRLF: whole.replaceAll("\n", "\r\n"),
  CR: whole.replaceAll("\n", "\r"),
  mark: "\ufeff" + whole,
  "no data": events('{"text":"one "}') + "event: ping\n\n" + events('{"text":"two"}', "[DONE]"),
};
fs.writeFileSync("streams.json", JSON.stringify(Object.entries(streams)));
console.error = () => {};
for (const [name, stream] of Object.entries(streams)) {
  let text = "", error = "no error";
  try {
    for await (const piece of Stream.fromSSEResponse(new Response(stream), new AbortController())) text += piece.text;
  } catch (e) {
    error = e.name;
  }
  console.log(`openai, ${name}: "${text}", ${error}`);
}
EOS
cat >main.go <<'EOS'
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/openai/openai-go/v3/packages/ssestream"
)

func main() {
	var streams [][2]string
	data, err := os.ReadFile("streams.json")
	if err == nil {
		err = json.Unmarshal(data, &streams)
	}
	for _, s := range streams {
		body := io.NopCloser(strings.NewReader(s[1]))
		response := &http.Response{Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body}
		stream := ssestream.NewStream[struct{ Text string }](ssestream.NewDecoder(response), nil)
		text, said := "", "no error"
		for stream.Next() {
			text += stream.Current().Text
		}
		if stream.Err() != nil {
			said = stream.Err().Error()
		}
		fmt.Printf("openai-go, %s: %q, %s\n", s[0], text, said)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
EOS
export GOPATH="$tmp/go" GOFLAGS=-mod=mod
{ go mod init example.org/finding && go get "github.com/openai/openai-go/v3/packages/ssestream@$go"; } >go.log 2>&1 ||
  { cat go.log; exit 1; }
node main.mjs >seen
go run . >>seen
echo "openai of npm $npm, openai-go $go; expected \"one two\" and no error each time"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
openai, LF: "one two", no error
openai, CRLF: "one two", no error
openai, CR: "one two", no error
openai, mark: "one two", no error
openai, no data: "one ", SyntaxError
openai-go, LF: "one two", no error
openai-go, CRLF: "one two", no error
openai-go, CR: "", no error
openai-go, mark: "two", no error
openai-go, no data: "one two", no error
EOS
