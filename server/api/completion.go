package api

import (
	"context"

	"github.com/vkmla/vkmla/internal/files"
)

// completions is the form of answers that go on with a text.
type completions struct{}

func (completions) names() (prefix, whole, piece string) {
	return "cmpl-", "text_completion", "text_completion"
}

func (completions) whole(h head, list []choice, u *usage) any { return response{h, list, u} }

func (completions) events(h head, c choice) []any { return []any{response{h, []choice{c}, nil}} }

func (completions) counted(h head, u *usage) any { return response{h, []choice{}, u} }

// completion understands a body of /v1/completions. What cannot be honoured is refused by name,
// unless it says what happens anyway.
func (s *Server) completion(ctx context.Context, body []byte) (*task, error) {
	c := &task{form: completions{}}
	all, err := object(body, map[string]func(*files.Scanner) error{
		"prompt": func(scan *files.Scanner) error { return s.prompts(ctx, scan, c) }})
	if err != nil {
		return nil, err
	}
	m := reader{all: all}
	if len(c.prompts) == 0 {
		m.bad("prompt", "none", "a text or a list of token ids, such as [1, 2, 3]")
	}
	s.sampling(&m, c)
	if best := number(&m, "best_of", c.n, 1, mostAnswers); best != c.n {
		m.bad("best_of", best, "n, %d: no answers are made to choose from", c.n)
	}
	r := &c.request
	r.MaxTokens = number(&m, "max_tokens", 16, 0, s.o.MaxTokens)
	r.MaxTokens = number(&m, "max_completion_tokens", r.MaxTokens, 0, s.o.MaxTokens)
	r.Echo = value(&m, "echo", false)
	r.Logprobs = m.has("logprobs")
	r.Top = number(&m, "logprobs", 0, 0, mostLogprobs)
	if value(&m, "suffix", "") != "" {
		m.bad("suffix", "one", "none: this server only continues texts")
	}
	return c, m.done(c)
}
