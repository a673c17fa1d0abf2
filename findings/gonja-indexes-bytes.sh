#!/usr/bin/env bash
# gonja, a Go engine for Jinja templates, counts characters of a text in `length` and in slices, but
# bytes where one of them is taken: text[0] of "éa" is the letter whose number is the first byte, and
# {% for c in text %} gives pieces that are not UTF-8. Python's jinja2 has characters everywhere.
#
# One would expect a text to be of bytes or of characters. A template that goes through a text by
# range(text | length) renders other letters as soon as one lies outside of ASCII, without an error.
set -euo pipefail
engine=v2.9.1
. "$(dirname "${BASH_SOURCE[0]}")/jinja"

cat >cases.json <<'EOT'
["{{ text | length }}", "{{ text[1:] }}", "{{ text[0] }}", "{% for i in range(text | length) %}{{ text[i] }}{% endfor %}",
 "{% for c in text %}[{{ c }}]{% endfor %}"]
EOT
cat >main.go <<'EOT'
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/nikolalohinski/gonja/v2"
	"github.com/nikolalohinski/gonja/v2/exec"
)

func main() {
	data, err := os.ReadFile("cases.json")
	var cases []string
	if err == nil {
		err = json.Unmarshal(data, &cases)
	}
	for _, c := range cases {
		var t *exec.Template
		if t, err = gonja.FromString(c); err != nil {
			break
		}
		out := ""
		if out, err = t.ExecuteToString(exec.NewContext(map[string]any{"text": "éa"})); err != nil {
			break
		}
		fmt.Printf("%+q\n", out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
EOT
go_get github.com/nikolalohinski/gonja/v2 "$engine"
go run . >seen
compare "gonja $engine" '"2"' '"a"' '"\u00c3"' '"\u00c3\u00a9"' '"[\xc3][\xa9][a]"'
