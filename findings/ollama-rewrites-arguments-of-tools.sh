#!/usr/bin/env bash
# Ollama parses the arguments of a model's tool call and writes them anew, for the client and, in the
# next turn, for the model. Numbers go through float64: the tool gets 1234567890123456800 where the
# model wrote 1234567890123456789. In its next prompt the model finds another call than its own: in
# the one for Qwen3-Coder the number is 1.2345678901234568e+18, in the one for DeepSeek 1.0 is 1, and
# < and & are \u003c and \u0026.
#
# One would expect that `arguments`, a string in OpenAI's API, is the model's text, and that a model
# is shown its calls as it wrote them: DeepSeek's template puts the string there as it is. Ids of
# messages and users have nineteen digits in many services. They survive as strings only.
set -euo pipefail
version=v0.17.4
tmp="$(mktemp -d)"
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
cd "$tmp"

cat >main.go <<'EOF'
package main

import (
	"fmt"
	"log"
	"regexp"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/model/parsers"
	"github.com/ollama/ollama/model/renderers"
	"github.com/ollama/ollama/openai"
)

const arguments = `{"channel":1234567890123456789,"text":"if a < b && c","scale":1.0}`

func main() {
	parser := parsers.ParserForName("deepseek3")
	parser.Init(nil, nil, nil)
	_, _, calls, err := parser.Add("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>post<｜tool▁sep｜>"+arguments+
		"<｜tool▁call▁end｜><｜tool▁calls▁end｜>", true)
	if err != nil {
		log.Fatal(err)
	}
	answer := openai.ToChatCompletion("", api.ChatResponse{Message: api.Message{Role: "assistant", ToolCalls: calls}})
	fmt.Println("the client:", answer.Choices[0].Message.ToolCalls[0].Function.Arguments)

	// The client sends the answer back, with the question that it was to.
	next, err := openai.FromChatRequest(openai.ChatCompletionRequest{Messages: []openai.Message{
		{Role: "user", Content: "Hello"}, answer.Choices[0].Message}})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range []struct{ name, call string }{
		{"deepseek3.1", `(?s)sep｜>(.*)<｜tool▁call▁end`},
		{"qwen3-coder", `(?s)(<parameter=channel>.*?</parameter>)`},
	} {
		prompt, err := renderers.RenderWithRenderer(m.name, next.Messages, nil, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("the prompt of %s: %q\n", m.name, regexp.MustCompile(m.call).FindStringSubmatch(prompt)[1])
	}
}
EOF
export GOPATH="$tmp/go" GOFLAGS=-mod=mod
{ go mod init example.org/finding && go get "github.com/ollama/ollama@$version" && go build -o main .; } >go.log 2>&1 || { cat go.log; exit 1; }
./main >seen
echo "ollama $version: expected everywhere" "$(sed -n 's/^const arguments = //p' main.go)"
cat seen
diff - seen >changed <<'EOF' || { cat changed; echo "this has changed"; exit 1; }
the client: {"channel":1234567890123456800,"text":"if a \u003c b \u0026\u0026 c","scale":1}
the prompt of deepseek3.1: "{\"channel\":1234567890123456800,\"text\":\"if a \\u003c b \\u0026\\u0026 c\",\"scale\":1}"
the prompt of qwen3-coder: "<parameter=channel>\n1.2345678901234568e+18\n</parameter>"
EOF
