package api

import (
	"fmt"
	"unicode/utf8"

	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/text"
)

// choice is an answer, or a piece of one.
type choice struct {
	Index    int       `json:"index"`
	Text     string    `json:"text"`
	TokenIDs []int32   `json:"token_ids"`
	Logprobs *logprobs `json:"logprobs"`
	Finish   *string   `json:"finish_reason"`

	tokens []batch.Token
	text   func(id int32) string // of a token
}

// logprobs has an entry for each token of a choice. Tokens are called token_id:N.
type logprobs struct {
	Tokens  []string             `json:"tokens"`
	Chosen  []*float32           `json:"token_logprobs"`
	Top     []map[string]float32 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"`
}

func tokenName(id int32) string { return fmt.Sprintf("token_id:%d", id) }

// writer makes choices of the tokens of an answer, one after the other.
type writer struct {
	text   *text.Decoder
	length int // characters so far
	wanted bool
	stops  []string // texts that end the answer, and are no part of it
	held   string   // may be the beginning of one of them
	ended  bool     // one was found
}

// emit returns what of a text can be sent: nothing from a stop on, and not yet what one may begin
// with.
func (w *writer) emit(s string) string {
	w.held += s
	s, stop := text.Until(&w.held, w.stops)
	if stop >= 0 {
		w.ended, w.held = true, ""
	}
	return s
}

// choice reports tokens, and how many of them are a part of the answer. The chosen one is among its
// candidates even if it is less probable.
func (w *writer) choice(tokens []batch.Token, reason batch.Reason) (c choice, used int) {
	c = choice{TokenIDs: []int32{}, text: w.text.Token}
	if w.wanted {
		c.Logprobs = &logprobs{Tokens: []string{}, Chosen: []*float32{}, Top: []map[string]float32{}, Offsets: []int{}}
	}
	for _, t := range tokens {
		if w.ended {
			break
		}
		used++
		c.TokenIDs, c.tokens = append(c.TokenIDs, t.ID), append(c.tokens, t)
		if w.wanted {
			c.Logprobs.add(t, w.length)
		}
		s := w.text.Add(t.ID)
		w.length += utf8.RuneCountInString(s)
		if !t.Prompt {
			s = w.emit(s)
		}
		c.Text += s
	}
	if reason != "" && !w.ended {
		if c.Text += w.emit(w.text.End()); !w.ended {
			c.Text += w.held
		}
	}
	switch stopped := batch.Stopped; {
	case w.ended:
		c.Finish = (*string)(&stopped)
	case reason != "":
		c.Finish = (*string)(&reason)
	}
	return c, used
}

// add reports a token that begins after some characters.
func (l *logprobs) add(t batch.Token, at int) {
	l.Tokens, l.Offsets = append(l.Tokens, tokenName(t.ID)), append(l.Offsets, at)
	if t.First {
		l.Chosen, l.Top = append(l.Chosen, nil), append(l.Top, nil)
		return
	}
	top := map[string]float32{tokenName(t.ID): t.Logprob}
	for _, x := range t.Top {
		top[tokenName(x.ID)] = x.Logprob
	}
	l.Chosen, l.Top = append(l.Chosen, &t.Logprob), append(l.Top, top)
}

// join adds what comes after c.
func (c *choice) join(next choice) {
	c.Text, c.TokenIDs, c.Finish = c.Text+next.Text, append(c.TokenIDs, next.TokenIDs...), next.Finish
	c.tokens, c.text = append(c.tokens, next.tokens...), next.text
	if next.Logprobs == nil {
		return
	}
	if c.Logprobs == nil {
		c.Logprobs = next.Logprobs
		return
	}
	a, b := c.Logprobs, next.Logprobs
	a.Tokens, a.Chosen = append(a.Tokens, b.Tokens...), append(a.Chosen, b.Chosen...)
	a.Top, a.Offsets = append(a.Top, b.Top...), append(a.Offsets, b.Offsets...)
}

type usage struct {
	Prompt     int      `json:"prompt_tokens"`
	Completion int      `json:"completion_tokens"`
	Total      int      `json:"total_tokens"`
	Details    *details `json:"prompt_tokens_details,omitempty"`
}

// details says how many tokens of a prompt a store had.
type details struct {
	Cached int `json:"cached_tokens"`
}

// head begins each answer and each piece of one.
type head struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

type response struct {
	head
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}
