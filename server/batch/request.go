package batch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/vkmla/vkmla/server/model"
)

// Request asks for the continuation of a prompt.
type Request struct {
	Prompt      []int32
	MaxTokens   int     // 0: none; with Echo the prompt is scored
	Temperature float64 // 0: the most probable token
	TopK        int     // only this many of the most probable tokens; 0: all
	TopP        float64 // only the most probable tokens that have this part of all probability; 0: all
	MinP        float64 // only tokens of at least this part of the most probable one's probability
	// What changes the logits before a token is drawn. Reported probabilities are the model's own.
	Presence   float64           // taken from those of tokens that the answer has
	Frequency  float64           // the same, as often as it has them
	Repetition float64           // divides those of all tokens so far if above 0, else multiplies; 0 counts as 1
	Bias       map[int32]float64 // added

	Owner    string // whose prompts may be found in Options.Prefixes, and who keeps this one
	Seed     uint64
	Stop     []int32 // tokens that end the answer
	Logprobs bool    // report logarithms of probabilities
	Top      int     // with Logprobs: the most probable tokens of each position to report
	Echo     bool    // report the prompt's tokens, too
}

// Token is a token of a prompt or of an answer.
type Token struct {
	ID      int32
	Prompt  bool
	First   bool        // it has nothing in front of it and no Logprob
	Logprob float32     // at temperature 1; 0 without Request.Logprobs
	Top     []Candidate // Request.Top most probable ones
}

// Reason is why an answer ended.
type Reason string

const (
	Stopped Reason = "stop"   // a token of Request.Stop
	Length  Reason = "length" // MaxTokens
)

// Answer is a request on its way. Its tokens wait for their reader, so that a slow client stops no
// other.
type Answer struct {
	request Request
	ctx     context.Context // the client's
	came    time.Time
	last    time.Time     // of its last token; zero: it has none
	begun   bool          // it has been taken from the queue
	changed chan struct{} // holds one while there is something new

	mu     sync.Mutex
	tokens []Token
	reason Reason
	err    error

	// Of the scheduler.
	sequence *model.Sequence
	all      []int32 // prompt and answer
	computed int     // of all, how many the sequence has
	reported int     // of the prompt, how many were reported
	answered int     // tokens of the answer
	drafts   []int32 // what may follow all
	found    int     // tokens that a store had when the request was first begun; -1: not begun
	parting  int     // tokens after which the sequence is to be kept for others; 0: none
	ready    error   // of those that were opened: why there is no sequence
}

// Next waits for more tokens. With the last of them it says why they are the last.
//
// Errors: the context's, and what became of the request: see Scheduler.Submit.
func (a *Answer) Next(ctx context.Context) (tokens []Token, reason Reason, err error) {
	for {
		a.mu.Lock()
		tokens, reason, err = a.tokens, a.reason, a.err
		a.tokens = nil
		a.mu.Unlock()
		if len(tokens) > 0 || reason != "" || err != nil {
			return tokens, reason, err
		}
		select {
		case <-a.changed:
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		}
	}
}

// add gives the reader tokens, and the end if this is it.
func (a *Answer) add(tokens []Token, reason Reason, err error) {
	a.mu.Lock()
	a.tokens = append(a.tokens, tokens...)
	a.reason, a.err = reason, err
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// PromptTokens returns the number of tokens of the prompt.
func (a *Answer) PromptTokens() int { return len(a.request.Prompt) }

// CachedTokens returns the number of them that were not computed for this request, once it has
// tokens.
func (a *Answer) CachedTokens() int { return max(a.found, 0) }

// left returns the number of tokens that are known and not yet computed.
func (a *Answer) left() int { return len(a.all) - a.computed }

// wants reports whether the logits about a token, those of the one in front of it, are reported.
func (a *Answer) wants(next int) bool {
	score := a.request.Echo && next < len(a.request.Prompt) && next >= a.reported
	return score || next == len(a.all) && a.answered < a.request.MaxTokens
}

// chunk returns the next n tokens, drafts after those that are known, and those whose logits are
// needed: the ones that are reported, and with kept the last, so that nothing is kept that is not
// finite.
func (a *Answer) chunk(n int, kept bool) model.Chunk {
	c := model.Chunk{Sequence: a.sequence, Tokens: a.all[a.computed:]}
	if drafts := n - len(c.Tokens); drafts > 0 {
		c.Tokens = slices.Concat(c.Tokens, a.drafts[:drafts])
	}
	c.Tokens = c.Tokens[:n]
	for i := range n {
		if next := a.computed + i + 1; a.wants(next) || next > len(a.all) || kept && i == n-1 {
			c.Logits = append(c.Logits, i)
		}
	}
	return c
}

// took takes what a step computed of a chunk, up to a draft that is not drawn. done is why the
// answer ended.
//
// Errors: ErrNumbers.
func (a *Answer) took(c model.Chunk, logits [][]float32) (tokens []Token, done Reason, err error) {
	r := &a.request
	if r.Echo && a.reported == 0 {
		tokens, a.reported = append(tokens, Token{ID: r.Prompt[0], Prompt: true, First: true}), 1
	}
	first := a.computed
	a.computed += len(c.Tokens)
	for i, at := range c.Logits {
		d, finite := newDistribution(logits[i])
		if !finite {
			return tokens, "", ErrNumbers
		}
		next := first + at + 1
		if !a.wants(next) {
			continue
		}
		if r.Logprobs {
			d.sum()
		}
		t := Token{Prompt: next < len(r.Prompt)}
		if t.Prompt {
			t.ID, a.reported = r.Prompt[next], next+1
		} else {
			t.ID = d.changed(r, a.all).draw(r, next)
			a.all = append(a.all, t.ID)
			a.answered++
		}
		if r.Logprobs {
			t.Logprob, t.Top = d.logprob(t.ID), d.top(r.Top)
		}
		tokens = append(tokens, t)
		if t.Prompt {
			continue
		}
		if slices.Contains(r.Stop, t.ID) {
			a.computed = next
			return tokens, Stopped, nil
		}
		if at+1 < len(c.Tokens) && c.Tokens[at+1] != t.ID {
			a.computed = next
			break
		}
	}
	// The last token of an answer need not be computed: nothing comes after it.
	if a.answered == r.MaxTokens && (a.answered > 0 || a.left() == 0) {
		done = Length
	}
	return tokens, done, nil
}
