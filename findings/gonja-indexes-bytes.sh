#!/usr/bin/env bash
# gonja, a Go engine for Jinja templates, counts characters of a text in `length` and in slices, but
# bytes where one of them is taken: text[0] of "éa" is the letter whose number is the first byte, and
# {% for c in text %} gives pieces that are not UTF-8. Python's jinja2 has characters everywhere.
#
# One would expect a text to be of bytes or of characters. A template that goes through a text by
# range(text | length) renders other letters as soon as one lies outside of ASCII, without an error.
set -euo pipefail
engine=v2.9.1 reference=3.1.2-1+deb12u3
tmp="$(mktemp -d)"
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download -qq "python3-jinja2=$reference" python3-markupsafe=2.1.2-1+b1 2>warnings || { cat warnings; exit 1; }
for f in *.deb; do dpkg -x "$f" tree; done

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
export GOPATH="$tmp/go" GOFLAGS=-mod=mod
go mod init example.org/finding 2>go.log && go get "github.com/nikolalohinski/gonja/v2@$engine" 2>>go.log || { cat go.log; exit 1; }
go run . >seen
PYTHONPATH=tree/usr/lib/python3/dist-packages python3 - >expected <<'EOT'
import json, jinja2
for case in json.load(open("cases.json")):
    print(json.dumps(jinja2.Environment().from_string(case).render(text="éa")))
EOT
echo "jinja2 $reference (expected), gonja $engine (seen)"
diff --side-by-side --width=70 expected seen || true
printf '%s\n' '"2"' '"a"' '"\u00c3"' '"\u00c3\u00a9"' '"[\xc3][\xa9][a]"' | diff - seen >changed || { cat changed; echo "this has changed"; exit 1; }
