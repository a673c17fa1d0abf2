package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/chat"
	"github.com/vkmla/vkmla/server/model"
	"github.com/vkmla/vkmla/server/text"
)

const vocab = 300

// counting continues with the token that is one more.
type counting struct{}

func (counting) NewSequence() (*model.Sequence, error) { return &model.Sequence{}, nil }
func (counting) Step(_ context.Context, chunks ...model.Chunk) (logits [][]float32, err error) {
	for _, c := range chunks {
		for _, at := range c.Logits {
			l := make([]float32, vocab)
			l[(c.Tokens[at]+1)%vocab] = 5
			logits = append(logits, l)
		}
	}
	return logits, nil
}

func serve(t *testing.T, healthy error) *httptest.Server { return serveText(t, healthy, nil) }

func serveText(t *testing.T, healthy error, k *text.Tokenizer) *httptest.Server {
	return serveModel(t, counting{}, healthy, k)
}

func serveModel(t *testing.T, m batch.Model, healthy error, k *text.Tokenizer) *httptest.Server {
	return serveAsked(t, m, healthy, k, nil)
}

// serveAsked calls asked with the context of each request that was scheduled. With a tokenizer
// there are conversations, too.
func serveAsked(t *testing.T, m batch.Model, healthy error, k *text.Tokenizer, asked func(context.Context)) *httptest.Server {
	server := httptest.NewServer(handler(t, m, healthy, k, asked))
	t.Cleanup(server.Close)
	return server
}

func handler(t *testing.T, m batch.Model, healthy error, k *text.Tokenizer, asked func(context.Context)) http.Handler {
	var talk *chat.Template
	if k != nil {
		talk = template(t)
	}
	most := 50
	if k != nil {
		most = 600
	}
	log, registry := slog.New(slog.NewTextHandler(io.Discard, nil)), prometheus.NewRegistry()
	s := batch.New(m, batch.Options{Vocab: vocab, MaxTokens: most, MaxSessions: 2, MaxStep: 4, Log: log,
		Metrics: batch.NewMetrics(registry)})
	t.Cleanup(func() { s.Close(context.Background()) })
	api, admin := New(Options{Name: "m", EOS: []int32{9}, Text: k, Chat: talk, MaxTokens: most, Metrics: registry, Log: log,
		Healthy: func() error { return healthy }, Schedule: func(ctx context.Context, r batch.Request) (*batch.Answer, error) {
			a, err := s.Submit(ctx, r)
			if asked != nil {
				asked(ctx)
			}
			return a, err
		}})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/metrics") || strings.HasPrefix(r.URL.Path, "/debug/") {
			admin.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

func post(t *testing.T, s *httptest.Server, body string) (int, string) {
	r, err := http.Post(s.URL+"/v1/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(data)
}

func TestCompletions(t *testing.T) {
	s := serve(t, nil)
	status, body := post(t, s, `{"prompt": [1, 2, 3], "max_tokens": 3, "temperature": 0, "logprobs": 2}`)
	require.Equal(t, 200, status, body)
	var r response
	require.NoError(t, json.Unmarshal([]byte(body), &r))
	require.Len(t, r.Choices, 1)
	c := r.Choices[0]
	assert.Equal(t, []int32{4, 5, 6}, c.TokenIDs)
	assert.Equal(t, "length", *c.Finish)
	assert.Equal(t, []string{"token_id:4", "token_id:5", "token_id:6"}, c.Logprobs.Tokens)
	assert.Contains(t, c.Logprobs.Top[0], "token_id:4")
	assert.Len(t, c.Logprobs.Top[0], 2)
	assert.Equal(t, *c.Logprobs.Chosen[0], c.Logprobs.Top[0]["token_id:4"])
	assert.Equal(t, usage{3, 3, 6, nil}, *r.Usage)

	_, body = post(t, s, `{"prompt": [6], "temperature": 0}`)
	assert.Contains(t, body, `"token_ids":[7,8,9],"logprobs":null,"finish_reason":"stop"`)
	_, body = post(t, s, `{"prompt": [6], "temperature": 0, "max_tokens": 4, "ignore_eos": true}`)
	assert.Contains(t, body, `"token_ids":[7,8,9,10]`)
	_, body = post(t, s, `{"prompt": [6, 7], "max_tokens": 0, "echo": true, "logprobs": 1}`)
	assert.Contains(t, body, `"token_ids":[6,7]`)
	assert.Contains(t, body, `"token_logprobs":[null,`)
}

func TestStream(t *testing.T) {
	_, body := post(t, serve(t, nil), `{"prompt": [1], "max_tokens": 3, "temperature": 0, "stream": true}`)
	var ids []int32
	end := ""
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			require.True(t, strings.HasPrefix(event, ":"), event)
			continue
		}
		if end = data; data == "[DONE]" {
			break
		}
		var r response
		require.NoError(t, json.Unmarshal([]byte(data), &r))
		ids = append(ids, r.Choices[0].TokenIDs...)
	}
	assert.Equal(t, "[DONE]", end)
	assert.Equal(t, []int32{2, 3, 4}, ids)
}

// TestAbsent takes null where a member may be absent, and a negative seed.
func TestAbsent(t *testing.T) {
	s := serve(t, nil)
	_, body := post(t, s, `{"prompt": [6], "temperature": 0, "max_tokens": null, "seed": null, "stream": null, "logprobs": null,
		"echo": null, "stop_token_ids": null, "stream_options": null, "n": null, "best_of": null, "top_p": null, "suffix": null,
		"stop": null, "logit_bias": null, "presence_penalty": null, "user": {"not": "known"}}`)
	assert.Contains(t, body, `"token_ids":[7,8,9],"logprobs":null,"finish_reason":"stop"`)
	status, first := post(t, s, `{"prompt": [6], "temperature": 100, "seed": -1, "max_tokens": 9}`)
	require.Equal(t, 200, status, first)
	_, again := post(t, s, `{"prompt": [6], "temperature": 100, "seed": -1, "max_tokens": 9}`)
	ids := func(body string) string {
		return body[strings.Index(body, `"token_ids"`):strings.Index(body, `"logprobs"`)]
	}
	assert.Equal(t, ids(first), ids(again))
}

// TestLogprobs asks for none but the chosen one, for the most, and for a stream of them.
func TestLogprobs(t *testing.T) {
	s := serve(t, nil)
	for top, entries := range map[int]int{0: 1, 1: 1, 100: 100} {
		request := fmt.Sprintf(`{"prompt": [1, 2, 3], "max_tokens": 3, "temperature": 0, "logprobs": %d`, top)
		_, body := post(t, s, request+"}")
		var whole response
		require.NoError(t, json.Unmarshal([]byte(body), &whole))
		all := whole.Choices[0].Logprobs
		require.Len(t, all.Top, 3)
		sum := 0.0
		for i, list := range all.Top {
			assert.Len(t, list, entries)
			assert.Equal(t, *all.Chosen[i], list[all.Tokens[i]])
		}
		for _, p := range all.Top[0] {
			sum += math.Exp(float64(p))
		}
		others := float64(entries - 1)
		assert.InDelta(t, (math.Exp(5)+others)/(math.Exp(5)+vocab-1), sum, 1e-6)

		_, body = post(t, s, request+`, "stream": true, "stream_options": {"include_usage": true}}`)
		var pieces logprobs
		var counted *usage
		for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
			var r response
			if json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &r) != nil {
				continue // [DONE]
			}
			counted = r.Usage
			for _, c := range r.Choices {
				require.Len(t, c.Logprobs.Top, len(c.TokenIDs))
				pieces.Tokens, pieces.Chosen = append(pieces.Tokens, c.Logprobs.Tokens...), append(pieces.Chosen, c.Logprobs.Chosen...)
				pieces.Top, pieces.Offsets = append(pieces.Top, c.Logprobs.Top...), append(pieces.Offsets, c.Logprobs.Offsets...)
			}
		}
		assert.Equal(t, *all, pieces)
		assert.Equal(t, whole.Usage, counted)
	}
}

// tokenizer has a token of each byte, of its own number but for those of U+0100 and on, which are
// the first.
func tokenizer(t *testing.T) *text.Tokenizer {
	t.Helper()
	vocab := map[string]int{}
	for b := range 256 {
		vocab[string(rune(b))] = b
	}
	// Of the bytes that cannot be seen, a space is U+0120; "🙂" is f0 9f 99 82.
	next := 256
	for b := range 256 {
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			delete(vocab, string(rune(b)))
			vocab[string(rune(next))] = b
			next++
		}
	}
	data, err := json.Marshal(map[string]any{"added_tokens": []any{map[string]any{"id": 299, "content": "<end>", "special": true}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel"}, "decoder": map[string]any{"type": "ByteLevel"},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}}})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o666))
	k, err := text.Open(dir)
	require.NoError(t, err)
	return k
}

// TestText asks by a text and gets one, in pieces that never end in the middle of a character.
func TestText(t *testing.T) {
	s := serveText(t, nil, tokenizer(t))
	for _, prompt := range []string{`"xab"`, `["xab"]`, `[120, 97, 98]`} {
		_, body := post(t, s, `{"prompt": `+prompt+`, "max_tokens": 3, "temperature": 0, "logprobs": 1}`)
		assert.Contains(t, body, `"text":"cde","token_ids":[99,100,101]`, prompt)
		assert.Contains(t, body, `"text_offset":[0,1,2]`, prompt)
		assert.Contains(t, body, `"prompt_tokens":3`, prompt)
	}
	_, body := post(t, s, `{"prompt": "é🙂<end>", "max_tokens": 0, "echo": true}`)
	assert.Contains(t, body, `"text":"é🙂","token_ids":[195,169,240,159,153,130,299]`, "a special token has no text")

	_, body = post(t, s, `{"prompt": "é\u00c2", "max_tokens": 4, "temperature": 0, "stream": true, "echo": true}`)
	var whole strings.Builder
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		var r response
		if json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &r) == nil {
			whole.WriteString(r.Choices[0].Text)
		}
	}
	assert.Equal(t, "éÂ\uFFFD\uFFFD\uFFFD\uFFFD", whole.String(), "bytes 83, 84, 85 and 86 belong to no character")
	for _, none := range []string{`{"prompt": ""}`, `{"prompt": null}`} {
		status, body := post(t, s, none)
		assert.Equal(t, 400, status, body)
	}
	status, body := post(t, serve(t, nil), `{"prompt": "xab"}`)
	assert.Equal(t, 400, status)
	assert.Contains(t, body, "the model has no tokenizer.json")
}

func TestRefused(t *testing.T) {
	s := serve(t, nil)
	for _, body := range []string{``, `{}`, `{"prompt": "text"}`, `{"prompt": []}`, `{"prompt": null}`,
		`{"prompt": [300]}`, `{"prompt": [-1]}`,
		`{"prompt": [1], "logprobs": 101}`, `{"prompt": [1], "temperature": -1}`, `{"prompt": [1], "n": 65}`,
		`{"prompt": [1], "max_tokens": 50}`, `{"prompt": [1], "top_p": 1.5}`, `{"prompt": [1], "stop": ["x"]}`,
		`{"prompt": [null]}`, `{"prompt": [1, null]}`, `{"prompt": [[1, null]]}`, `{"prompt": [[]]}`, `{"prompt": [[1], []]}`,
		`{"prompt": [1.5]}`, `{"prompt": [1e400]}`, `{"prompt": [4294967297]}`, `{"prompt": {"a": 1}}`, `{"prompt": [1]} {}`,
		`{"prompt": [1], "stop_token_ids": [-1]}`, `{"prompt": [1], "stop_token_ids": [300]}`,
		`{"prompt": [1], "stream_options": {"other": 1}}`, `{"prompt": [1], "stop_token_ids": [null]}`, `{"prompt": [1], "stop_token_ids": [4, null]}`,
		`{"prompt": [1], "max_tokens": -1}`, `{"prompt": [1], "max_tokens": 9223372036854775807}`, `{"prompt": [1], "max_tokens": 1e30}`,
		`{"prompt": [1], "max_tokens": "3"}`, `{"prompt": [1], "temperature": NaN}`, `{"prompt": [1], "temperature": "1"}`,
		`{"prompt": [1], "logprobs": -1}`, `{"prompt": [1], "logprobs": true}`, `{"prompt": [1], "seed": 0.5}`,
		`{"prompt": [1], "stream": "yes"}`} {
		status, answer := post(t, s, body)
		assert.Equal(t, 400, status, body)
		assert.Contains(t, answer, `"invalid_request_error"`, body)
		assert.Contains(t, answer, `"code":"invalid_value"`, body)
	}
	for body, want := range map[string]string{
		`{"prompt": [1, 300]}`:                        `"param":"prompt[1]"`,
		`{"prompt": [1], "max_tokens": 50}`:           `"param":"max_tokens"`,
		`{"prompt": [1], "logit_bias": {"70000": 1}}`: `"param":"logit_bias"`,
		`{"prompt": [1], "logit_bias": {"the": 1}}`:   `numbers, by token id`,
		`{"prompt": [1], "stop_token_ids": [1e99]}`:   `a list of token ids`,
		`{"prompt": [1], "b": 1, "a": 1}`:             `"param":"a"`, // the first by name, each time
	} {
		_, answer := post(t, s, body)
		assert.Contains(t, answer, want, body)
	}
}

// TestLarge demands the status of a body that is too large.
func TestLarge(t *testing.T) {
	r, w := httptest.NewRequest("POST", "/v1/completions", strings.NewReader(`{"prompt": [1, 2, 3]}`)), httptest.NewRecorder()
	r.Body = http.MaxBytesReader(w, r.Body, 9) // as if this were maxBody
	serve(t, nil).Config.Handler.ServeHTTP(w, r)
	assert.Equal(t, 413, w.Code, w.Body)
	assert.Contains(t, w.Body.String(), "want at most 9 bytes")
	assert.Contains(t, w.Body.String(), `"request_too_large"`)
	assert.Contains(t, w.Body.String(), `"invalid_request_error"`)
}

// stepping is a model whose steps wait until they may go on.
type stepping struct {
	counting
	goOn chan struct{}
}

func (m stepping) Step(ctx context.Context, chunks ...model.Chunk) ([][]float32, error) {
	<-m.goOn
	return m.counting.Step(ctx, chunks...)
}

// TestLeaving gives up the requests of clients that have gone, in the middle of a stream and before
// a whole answer.
func TestLeaving(t *testing.T) {
	for _, stream := range []bool{true, false} {
		m, asked := stepping{goOn: make(chan struct{})}, make(chan context.Context, 1)
		s := serveAsked(t, m, nil, nil, func(ctx context.Context) { asked <- ctx })
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		body := fmt.Sprintf(`{"prompt": [10], "max_tokens": 49, "temperature": 0, "stream": %v}`, stream)
		r, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/completions", strings.NewReader(body))
		require.NoError(t, err)
		var seen context.Context
		if stream {
			stepped := make(chan struct{})
			go func() {
				m.goOn <- struct{}{}
				close(stepped)
			}()
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			_, err = answer.Body.Read(make([]byte, 1))
			require.NoError(t, err)
			<-stepped
			seen = <-asked
			leave()
			answer.Body.Close()
		} else {
			go func() {
				seen = <-asked
				leave()
			}()
			_, err := http.DefaultClient.Do(r)
			require.ErrorIs(t, err, context.Canceled)
		}
		<-seen.Done() // the server knows
		close(m.goOn)
		assert.Eventually(t, func() bool {
			r, err := http.Get(s.URL + "/metrics")
			require.NoError(t, err)
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			return strings.Contains(string(text), `vkmla_requests_total{outcome="cancelled"} 1`)
		}, time.Minute, time.Millisecond)
	}
}

// TestHalfClosed tells a client that has ended its side of the connection, and still reads, that
// this ended its request.
func TestHalfClosed(t *testing.T) {
	for stream, status := range map[bool]int{false: 499, true: 200} {
		m := stepping{goOn: make(chan struct{})}
		s := serveModel(t, m, nil, nil)
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		body := fmt.Sprintf(`{"prompt": [10], "stream": %v}`, stream)
		_, err = fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		require.NoError(t, err)
		require.NoError(t, c.(*net.TCPConn).CloseWrite())
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		said, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		close(m.goOn)
		assert.Equal(t, status, r.StatusCode, "%s", said)
		assert.Contains(t, string(said), `"invalid_request_error","param":null,"code":"client_closed_request"`)
	}
}

// broken is a model whose logits are no numbers.
type broken struct{ counting }

func (broken) Step(_ context.Context, chunks ...model.Chunk) (logits [][]float32, err error) {
	for _, c := range chunks {
		for range c.Logits {
			logits = append(logits, slices.Repeat([]float32{float32(math.NaN())}, vocab))
		}
	}
	return logits, nil
}

// TestNaN demands an error where JSON has no word for the answer.
func TestNaN(t *testing.T) {
	s := serveModel(t, broken{}, nil, nil)
	status, body := post(t, s, `{"prompt": [1], "temperature": 0, "logprobs": 1}`)
	assert.Equal(t, 500, status, body)
	assert.Contains(t, body, `"server_error"`)
	_, body = post(t, s, `{"prompt": [1], "temperature": 0, "logprobs": 1, "stream": true}`)
	assert.Contains(t, body, `"server_error"`)
	assert.NotContains(t, body, "[DONE]")
}

func TestOperators(t *testing.T) {
	for path, want := range map[string]string{"/healthz": "ok", "/metrics": "vkmla_requests_running",
		"/debug/pprof/": "goroutine", "/v1/models": `"m"`} {
		r, err := http.Get(serve(t, nil).URL + path)
		require.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, 200, r.StatusCode, path)
		assert.Contains(t, string(body), want, path)
	}
	r, err := http.Get(serve(t, errors.New("the device is lost")).URL + "/healthz")
	require.NoError(t, err)
	r.Body.Close()
	assert.Equal(t, 503, r.StatusCode)
}
