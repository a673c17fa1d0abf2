package api

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/vkmla/vkmla/server/batch"
)

// answer is one of the answers to a request.
type answer struct {
	*batch.Answer
	ctx    context.Context
	leave  context.CancelFunc // ends this answer alone
	out    writer
	prompt int // whose it is, of the request's prompts
	tokens int // of the answer
}

// form makes JSON of answers.
type form interface {
	// names returns what begins an answer's id, and what answers and pieces of them are called.
	names() (prefix, whole, piece string)
	whole(h head, list []choice, u *usage) any
	// events returns what a stream says of a piece of an answer, if there is something to say yet.
	events(h head, c choice) []any
	// counted returns the last event of a stream, which counts tokens.
	counted(h head, u *usage) any
}

// answer answers a request that parse understands.
func (s *Server) answer(parse func(context.Context, []byte) (*task, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		c, err := s.read(w, r, parse)
		if err != nil {
			fail(w, left(r, err))
			return
		}
		answers, err := s.schedule(r.Context(), c)
		defer func() {
			for _, a := range answers {
				a.leave()
			}
		}()
		if err != nil {
			fail(w, left(r, err))
			return
		}
		prefix, whole, piece := c.form.names()
		h := head{ID: fmt.Sprintf("%s%016x", prefix, rand.Uint64()), Object: whole, Created: began.Unix(), Model: s.o.Name}
		if c.stream {
			h.Object = piece
			err = s.stream(w, r, c, h, answers)
		} else {
			err = s.whole(w, r, c, h, answers)
		}
		u := count(answers)
		log := s.o.Log.With("id", h.ID, "answers", len(answers), "prompt", u.Prompt, "tokens", u.Completion, "stream", c.stream)
		if err != nil {
			log = log.With("error", err)
		}
		log.Info(whole, "time", time.Since(began))
	}
}

// schedule asks for all answers. Those of one prompt differ by their seeds.
func (s *Server) schedule(ctx context.Context, c *task) (list []*answer, err error) {
	for i, prompt := range c.prompts {
		for k := range c.n {
			r := c.request
			r.Prompt, r.Seed = prompt, r.Seed+uint64(k)
			r.Owner, _ = ctx.Value(owner{}).(string)
			a := &answer{prompt: i, out: writer{text: s.o.Text.Decoder(c.shown...), wanted: r.Logprobs, stops: c.stop}}
			a.ctx, a.leave = context.WithCancel(ctx)
			list = append(list, a)
			if a.Answer, err = s.o.Schedule(a.ctx, r); err != nil {
				return list, err
			}
		}
	}
	return list, nil
}

// next waits for more of an answer. done says that this is its end.
func (a *answer) next(ctx context.Context) (c choice, done bool, err error) {
	tokens, reason, err := a.Next(ctx)
	if err != nil {
		return c, false, err
	}
	c, used := a.out.choice(tokens, reason)
	for _, t := range tokens[:used] {
		if !t.Prompt {
			a.tokens++
		}
	}
	if c.Finish != nil {
		a.leave()
	}
	return c, c.Finish != nil, nil
}

// count adds up the tokens of all answers, each prompt's once.
func count(list []*answer) (u usage) {
	seen, cached := -1, 0
	for _, a := range list {
		if a.Answer == nil {
			continue
		}
		if u.Completion += a.tokens; a.prompt != seen {
			u.Prompt, cached, seen = u.Prompt+a.PromptTokens(), cached+a.CachedTokens(), a.prompt
		}
	}
	if u.Total = u.Prompt + u.Completion; cached > 0 {
		u.Details = &details{cached}
	}
	return u
}

// whole sends the answers when all are there.
func (s *Server) whole(w http.ResponseWriter, r *http.Request, c *task, h head, answers []*answer) error {
	var list []choice
	for i, a := range answers {
		all, done := choice{Index: i, TokenIDs: []int32{}}, false
		for !done {
			var piece choice
			var err error
			if piece, done, err = a.next(a.ctx); err != nil {
				err = left(r, err)
				fail(w, err)
				return err
			}
			all.join(piece)
		}
		list = append(list, all)
	}
	u := count(answers)
	return write(w, c.form.whole(h, list, &u))
}

// piece holds the next part of one of several answers.
type piece struct {
	choice choice
	done   bool
	err    error
}

// keepAlive is the time without a token after which a stream gets a comment, so that proxies do not
// take it for dead.
const keepAlive = 5 * time.Second

// stream sends the answers piece by piece. The client gets headers at once, and a comment now and
// then while there is nothing else, so that it knows that the server is there.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *task, h head, answers []*answer) error {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	if err := send(w, ": the request is taken\n\n"); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(r.Context())
	var reading sync.WaitGroup
	defer reading.Wait() // the answers are the caller's again
	defer stop()
	pieces := make(chan piece)
	for i, a := range answers {
		reading.Go(func() {
			for p := (piece{}); !p.done && p.err == nil; {
				p.choice, p.done, p.err = a.next(ctx)
				p.choice.Index = i
				select {
				case pieces <- p:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	quiet := time.NewTicker(keepAlive)
	defer quiet.Stop()
	for left := len(answers); left > 0; {
		select {
		case <-ctx.Done():
			return breakOff(w, r, ctx.Err())
		case <-quiet.C:
			if err := send(w, ": computing\n\n"); err != nil {
				return err
			}
		case p := <-pieces:
			if p.err != nil {
				return breakOff(w, r, p.err)
			}
			if p.done {
				left--
			}
			for _, said := range c.form.events(h, p.choice) {
				if err := event(w, said); err != nil {
					return err
				}
				quiet.Reset(keepAlive)
			}
		}
	}
	if c.usage {
		u := count(answers)
		if err := event(w, c.form.counted(h, &u)); err != nil {
			return err
		}
	}
	return send(w, "data: [DONE]\n\n")
}

// breakOff ends a stream with an error: it is too late for a status.
func breakOff(w http.ResponseWriter, r *http.Request, err error) error {
	err = left(r, err)
	_, what := describe(err)
	_ = event(w, map[string]any{"error": what}) // who has gone does not take it
	return err
}
