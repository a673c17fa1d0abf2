// Package api is the server's HTTP: completions as the usual API has them, with token ids beside
// text or in its place, and what an operator asks.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/pprof"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/text"
)

// maxBody is the most bytes of a request: a prompt of a million tokens has eight million.
const maxBody = 64 << 20

// mostLogprobs is the most candidates of a position that a request may ask for.
const mostLogprobs = 100

// Options are what a Server needs.
type Options struct {
	Name     string // of the model, in answers
	EOS      []int32
	Text     *text.Tokenizer // nil: prompts are token ids, and answers have no text
	Metrics  prometheus.Gatherer
	Healthy  func() error // of the device and the scheduler
	Log      *slog.Logger
	Schedule func(context.Context, batch.Request) (*batch.Answer, error)
}

// Server answers requests.
type Server struct{ o Options }

// New returns the handler of all paths.
func New(o Options) http.Handler {
	s := &Server{o}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /healthz", s.health)
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{}))
	// Whoever reaches this port may profile the program: keep it off public networks.
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if err := s.o.Healthy(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	_ = write(w, map[string]any{"object": "list", "data": []any{map[string]any{"id": s.o.Name, "object": "model"}}})
}

// completion is the body of a request. Members that it does not list are ignored, unless they
// would change the answer.
type completion struct {
	Model       string          `json:"model"`
	Prompt      json.RawMessage `json:"prompt"`
	MaxTokens   *int            `json:"max_tokens"`  // 16
	Temperature *float64        `json:"temperature"` // 1
	Seed        *int64          `json:"seed"`        // random
	Stream      bool            `json:"stream"`
	Logprobs    *int            `json:"logprobs"`
	Echo        bool            `json:"echo"`
	IgnoreEOS   bool            `json:"ignore_eos"`
	StopTokens  tokenIDs        `json:"stop_token_ids"`
	StreamOpts  struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`

	N                *int            `json:"n"`
	BestOf           *int            `json:"best_of"`
	TopP             *float64        `json:"top_p"`
	PresencePenalty  float64         `json:"presence_penalty"`
	FrequencyPenalty float64         `json:"frequency_penalty"`
	Suffix           string          `json:"suffix"`
	Stop             json.RawMessage `json:"stop"`
	LogitBias        map[string]any  `json:"logit_bias"`
}

// tokenIDs are token ids, of which none is null: encoding/json takes that for 0.
type tokenIDs []int32

// UnmarshalJSON reads a list of numbers.
func (t *tokenIDs) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*[]int32)(t)); err != nil {
		return err
	}
	if len(*t) > 0 && bytes.Contains(data, []byte("null")) { // there are no names in a list of numbers
		return fmt.Errorf("got %.40s, want a list of token ids, such as [1, 2, 3]", data)
	}
	return nil
}

func or[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// tokens reads the prompt: a list of token ids or, with a tokenizer, a text; or a list of one of
// these.
func (c *completion) tokens(k *text.Tokenizer) ([]int32, error) {
	var ids tokenIDs
	var lists []tokenIDs
	var one string
	var texts []string
	switch {
	case json.Unmarshal(c.Prompt, &ids) == nil && len(ids) > 0:
		return ids, nil
	case json.Unmarshal(c.Prompt, &lists) == nil && len(lists) == 1:
		return lists[0], nil
	case json.Unmarshal(c.Prompt, &one) == nil && string(c.Prompt) != "null":
	case json.Unmarshal(c.Prompt, &texts) == nil && len(texts) == 1:
		one = texts[0]
	default:
		return nil, fmt.Errorf("prompt: got %.40s, want one text or one list of token ids, such as [1, 2, 3]", c.Prompt)
	}
	if k == nil {
		return nil, fmt.Errorf("prompt: got %.40s, want one list of token ids, such as [1, 2, 3]: "+
			"the model has no tokenizer.json", c.Prompt)
	}
	return k.Encode(one)
}

// request reads a request's body.
func (c *completion) request(eos []int32, k *text.Tokenizer) (r batch.Request, err error) {
	refuse := func(format string, a ...any) { err = errors.Join(err, fmt.Errorf(format, a...)) }
	if r.Prompt, err = c.tokens(k); err == nil && len(r.Prompt) == 0 {
		refuse("prompt: got no tokens, want at least 1")
	}
	r.MaxTokens, r.Temperature, r.Echo = or(c.MaxTokens, 16), or(c.Temperature, 1), c.Echo
	r.Seed, r.Stop = uint64(or(c.Seed, rand.Int64())), c.StopTokens
	r.Logprobs, r.Top = c.Logprobs != nil, or(c.Logprobs, 0)
	if !c.IgnoreEOS {
		r.Stop = append(r.Stop, eos...)
	}
	if r.Temperature < 0 || r.Temperature > 100 {
		refuse("temperature: got %v, want 0 to 100", r.Temperature)
	}
	if r.Top < 0 || r.Top > mostLogprobs {
		refuse("logprobs: got %d, want 0 to %d", r.Top, mostLogprobs)
	}
	if or(c.N, 1) != 1 || or(c.BestOf, 1) != 1 {
		refuse("n, best_of: this server gives one answer")
	}
	if or(c.TopP, 1) != 1 || c.PresencePenalty != 0 || c.FrequencyPenalty != 0 || len(c.LogitBias) > 0 {
		refuse("top_p, presence_penalty, frequency_penalty, logit_bias: this server samples by temperature alone")
	}
	if c.Suffix != "" || len(c.Stop) > 0 && string(c.Stop) != "null" && string(c.Stop) != "[]" {
		refuse("suffix, stop: this server ends answers by tokens alone: stop_token_ids lists them")
	}
	return r, err
}

// choice is an answer, or a piece of one.
type choice struct {
	Index    int       `json:"index"`
	Text     string    `json:"text"`
	TokenIDs []int32   `json:"token_ids"`
	Logprobs *logprobs `json:"logprobs"`
	Finish   *string   `json:"finish_reason"`
}

// logprobs has an entry for each token of a choice. Tokens are called token_id:N.
type logprobs struct {
	Tokens  []string             `json:"tokens"`
	Chosen  []*float32           `json:"token_logprobs"`
	Top     []map[string]float32 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"`
}

func tokenName(id int32) string { return fmt.Sprintf("token_id:%d", id) }

// writer makes choices of the tokens of an answer, one behind the other.
type writer struct {
	text   *text.Decoder
	length int // characters so far
	wanted bool
}

func (w *writer) add(c *choice, s string) {
	c.Text += s
	w.length += utf8.RuneCountInString(s)
}

// choice reports tokens. The chosen one is among its candidates even if it is less probable.
func (w *writer) choice(tokens []batch.Token, reason batch.Reason) choice {
	c, wanted := choice{TokenIDs: []int32{}}, w.wanted
	if reason != "" {
		c.Finish = (*string)(&reason)
	}
	if wanted {
		c.Logprobs = &logprobs{Tokens: []string{}, Chosen: []*float32{}, Top: []map[string]float32{}, Offsets: []int{}}
	}
	for _, t := range tokens {
		c.TokenIDs = append(c.TokenIDs, t.ID)
		at := w.length
		w.add(&c, w.text.Add(t.ID))
		if !wanted {
			continue
		}
		l := c.Logprobs
		l.Tokens, l.Offsets = append(l.Tokens, tokenName(t.ID)), append(l.Offsets, at)
		if t.First {
			l.Chosen, l.Top = append(l.Chosen, nil), append(l.Top, nil)
			continue
		}
		top := map[string]float32{tokenName(t.ID): t.Logprob}
		for _, x := range t.Top {
			top[tokenName(x.ID)] = x.Logprob
		}
		l.Chosen, l.Top = append(l.Chosen, &t.Logprob), append(l.Top, top)
	}
	if reason != "" {
		w.add(&c, w.text.End())
	}
	return c
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

type response struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	var c completion
	var request batch.Request
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, &c) // all of it, so that nothing may follow
	}
	if err == nil {
		request, err = c.request(s.o.EOS, s.o.Text)
	}
	if err != nil {
		fail(w, fmt.Errorf("%w: %w", batch.ErrRequest, err))
		return
	}
	began := time.Now()
	answer, err := s.o.Schedule(r.Context(), request)
	if err != nil {
		fail(w, err)
		return
	}
	head := response{ID: fmt.Sprintf("cmpl-%016x", rand.Uint64()), Object: "text_completion", Created: began.Unix(), Model: s.o.Name}
	all, err := s.deliver(w, r, &c, head, answer)
	s.o.Log.Info("completion", "id", head.ID, "prompt", len(request.Prompt), "tokens", all, "stream", c.Stream,
		"time", time.Since(began), "error", err)
}

// deliver waits for the answer and sends it, whole or piece by piece. It returns how many tokens
// the answer has.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request, c *completion, head response, answer *batch.Answer) (n int, err error) {
	var whole []batch.Token
	var reason batch.Reason
	var counted usage
	out := writer{text: s.o.Text.Decoder(), wanted: c.Logprobs != nil}
	for sent := false; reason == ""; {
		var tokens []batch.Token
		if tokens, reason, err = answer.Next(r.Context()); err != nil {
			if !sent {
				fail(w, err)
			} else { // it is too late for a status
				_ = event(w, map[string]any{"error": message(err)})
			}
			return counted.Completion, err
		}
		for _, t := range tokens {
			if t.Prompt {
				counted.Prompt++
			} else {
				counted.Completion++
			}
		}
		if !c.Stream {
			whole = append(whole, tokens...)
			continue
		}
		if !sent {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Cache-Control", "no-cache")
			sent = true
		}
		head.Choices = []choice{out.choice(tokens, reason)}
		if err := event(w, head); err != nil {
			return counted.Completion, errors.Join(err, event(w, map[string]any{"error": message(err)}))
		}
	}
	counted.Prompt = answer.PromptTokens()
	counted.Total = counted.Prompt + counted.Completion
	if n := answer.CachedTokens(); n > 0 {
		counted.Details = &details{n}
	}
	head.Usage = &counted
	if !c.Stream {
		head.Choices = []choice{out.choice(whole, reason)}
		return counted.Completion, write(w, head)
	}
	if c.StreamOpts.Usage {
		head.Choices = []choice{}
		_ = event(w, head)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
	flush(w)
	return counted.Completion, nil
}

// event sends a server-sent event. JSON has no NaN, which logits of broken weights are.
func event(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		fmt.Fprintf(w, "data: %s\n\n", data)
		flush(w)
	}
	return err
}

// flush sends what was written. A client that has left is noticed by its context.
func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

func write(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		fail(w, err)
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n')) // a client that has left is noticed by its context
	return nil
}

func message(err error) map[string]any {
	kind := "server_error"
	if errors.Is(err, batch.ErrRequest) {
		kind = "invalid_request_error"
	}
	return map[string]any{"message": err.Error(), "type": kind}
}

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, batch.ErrRequest):
		status = http.StatusBadRequest
	case errors.Is(err, batch.ErrBusy):
		status = http.StatusTooManyRequests
	case errors.Is(err, batch.ErrClosing), errors.Is(err, batch.ErrMemory):
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": message(err)})
}
