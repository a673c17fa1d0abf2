// Package chat makes prompts of conversations, by the template that a model carries, and takes the
// model's answers apart again: reasoning, content and calls of tools.
package chat

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/ardanlabs/jinja"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/server/text"
)

// ErrTemplate: a template that cannot be read, or that refuses a conversation.
var ErrTemplate = errors.New("chat template")

//go:embed v4.jinja
var v4 string

// Template is a Jinja template for any number of goroutines.
type Template struct {
	jinja    *jinja.Template
	bos, eos string
}

// Open returns the template of a file or, if file is "", of the model that has the tokenizer: its
// own, or that of DeepSeek-V4 where the tokenizer has its marks. nil: it has none.
//
// Errors: ErrTemplate; the file system's.
func Open(file string, t *text.Tokenizer) (*Template, error) {
	if t == nil {
		return nil, nil
	}
	source, begin := t.Chat, t.BOS
	if file != "" {
		data, err := files.Read(file, text.MostFile)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
		}
		source = string(data)
	}
	if source == "" {
		for _, mark := range []string{"<｜User｜>", "<｜Assistant｜>", thought} {
			if !t.Has(mark) {
				return nil, nil
			}
		}
		begin = cmp.Or(begin, "<｜begin▁of▁sentence｜>")
	}
	return New(source, begin, t.EOS)
}

// New reads a template; "": the one of DeepSeek-V4, which is released as a description only.
// bos and eos are the texts of the tokens that a prompt begins and an answer ends with.
//
// Errors: ErrTemplate.
func New(source, bos, eos string) (*Template, error) {
	if source == "" {
		source = v4
	}
	t, err := jinja.Compile(adapted(source))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return &Template{t, bos, eos}, nil
}

// Where the engine differs from Python's: a dash of a tag takes the space on the other side of a
// tag that it touches, so something stands between that no text can have; and its tojson writes
// 1.0 as 1, so there is another one.
var (
	touching = regexp.MustCompile(`([}%#]})({[{%#])`)
	tojson   = regexp.MustCompile(`(\|\s*)tojson\b`)
)

const (
	gap      = "\xff"
	asPython = "json_as_python"
)

func adapted(source string) string {
	return tojson.ReplaceAllString(touching.ReplaceAllString(source, "${1}"+gap+"${2}"), "${1}"+asPython)
}

// rendered are the variables that Render sets.
var rendered = []string{"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", asPython}

// Render returns the prompt of a conversation, with all tools and variables of the request.
//
// Errors: ErrTemplate.
func (t *Template) Render(c *Conversation) (prompt string, err error) {
	defer func() { // the engine is for templates of models, which are files of others
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrTemplate, r)
		}
	}()
	all := maps.Clone(c.variables)
	if all == nil {
		all = map[string]jinja.Value{}
	}
	all["messages"] = jinja.NewList(c.messages)
	if len(c.tools) > 0 {
		all["tools"] = jinja.NewList(c.tools)
	}
	all["add_generation_prompt"] = jinja.NewBool(true)
	all["bos_token"], all["eos_token"] = jinja.NewString(t.bos), jinja.NewString(t.eos)
	all[asPython] = jinja.NewCallable("tojson", toJSON)
	prompt, err = t.jinja.RenderValues(all)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return strings.ReplaceAll(prompt, gap, ""), nil
}
