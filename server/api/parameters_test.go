package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/server/batch"
)

// parsed is an answer or an error.
type parsed struct {
	response
	Error *problem `json:"error"`
}

func ask(t *testing.T, s *httptest.Server, body string) (status int, r parsed) {
	t.Helper()
	status, text := post(t, s, body)
	require.NoError(t, json.Unmarshal([]byte(text), &r), text)
	return status, r
}

// TestParameters holds what requests may ask for.
func TestParameters(t *testing.T) {
	s := serveText(t, nil, tokenizer(t))
	texts := func(body string) (list []string) {
		status, r := ask(t, s, body)
		require.Equal(t, 200, status, body)
		for i, c := range r.Choices {
			assert.Equal(t, i, c.Index)
			list = append(list, fmt.Sprintf("%s %s", c.Text, *c.Finish))
		}
		return list
	}
	assert.Equal(t, []string{"bcdef length"},
		texts(`{"prompt": "a", "max_tokens": 5, "temperature": 0}`))
	assert.Equal(t, []string{"bc stop"}, texts(`{"prompt": "a", "max_tokens": 9, "temperature": 0, "stop": "de"}`))
	assert.Equal(t, []string{"b stop"}, texts(`{"prompt": "a", "max_tokens": 9, "temperature": 0, "stop": ["zz", "efg", "cd"]}`))
	assert.Equal(t, []string{"bcd length"}, texts(`{"prompt": "a", "max_tokens": 3, "temperature": 0, "stop": "dex"}`),
		"what is held back is sent at the end")
	assert.Equal(t, []string{"bc length", "bc length", "yz length", "yz length"},
		texts(`{"prompt": ["a", "x"], "n": 2, "max_tokens": 2, "temperature": 0}`))
	for _, one := range []string{`"top_k": 1`, `"top_p": 0`, `"top_p": 0.01`, `"min_p": 1`} {
		assert.Equal(t, []string{"bcd length"}, texts(`{"prompt": "a", "max_tokens": 3, "temperature": 2, "seed": 3, `+one+`}`), one)
	}
	assert.Equal(t, []string{"bc length"}, texts(`{"model": "m", "prompt": "a", "max_tokens": 2, "temperature": 0, `+
		`"user": "someone", "n": null, `+
		`"presence_penalty": 0, "response_format": {"type": "text"}, "logit_bias": {}}`))

	assert.Equal(t, []string{"qrs length"}, texts(`{"prompt": "a", "max_tokens": 3, "temperature": 0, "logit_bias": {"98": -20, "113": 1}}`))
	_, body := post(t, s, `{"prompt": ["a", "x"], "max_tokens": 5, "temperature": 0, "stream": true, "stop": "cd", `+
		`"stream_options": {"include_usage": true}}`)
	got := map[int]string{}
	for event := range strings.SplitSeq(body, "\n\n") {
		var r response
		if json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &r) == nil && len(r.Choices) > 0 {
			got[r.Choices[0].Index] += r.Choices[0].Text
		}
	}
	assert.Equal(t, map[int]string{0: "b", 1: "yz{|}"}, got)
	assert.Contains(t, body, `"prompt_tokens":2,`)
	assert.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"))
}

// TestNamed holds that what is not honoured is refused by its name.
func TestNamed(t *testing.T) {
	s := serve(t, nil)
	for _, penalty := range []string{`1e-39`, `1e-300`, `101`} { // the first two made all logits infinite
		status, r := ask(t, s, `{"prompt": [1], "min_p": 0.1, "repetition_penalty": `+penalty+`}`)
		assert.Equal(t, 400, status, penalty)
		assert.Equal(t, "repetition_penalty", *r.Error.Param)
	}
	for param, value := range map[string]string{"top_k": `-2`, "frequency_penalty": `3`, "presence_penalty": `-2.5`,
		"repetition_penalty": `0`,
		"response_format":    `{"type": "json_object"}`, "logit_bias": `{"3": 400}`, "suffix": `"x"`, "best_of": `3`, "stop": `"x"`,
		"min_tokens": `4`, "guided_json": `{}`, "max_tokens": `51`, "stop_token_ids": "[" + strings.Repeat("1,", 300) + "1]"} {
		status, r := ask(t, s, fmt.Sprintf(`{"prompt": [1], %q: %s}`, param, value))
		assert.Equal(t, 400, status, param)
		if assert.NotNil(t, r.Error, param) && assert.NotNil(t, r.Error.Param, param) {
			assert.Equal(t, param, *r.Error.Param)
			assert.Equal(t, "invalid_value", *r.Error.Code)
			assert.Equal(t, "invalid_request_error", r.Error.Type)
		}
	}
	status, r := ask(t, s, `{"prompt": [1], "model": "gpt-4"}`)
	assert.Equal(t, 404, status)
	assert.Equal(t, "model_not_found", *r.Error.Code)
	for path, want := range map[string]int{"/v1/models/m": 200, "/v1/models/x": 404, "/v1/chat/completions": 404, "/v1/responses": 404,
		"/v1/completions": 404} {
		answer, err := http.Get(s.URL + path)
		require.NoError(t, err)
		data, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, want, answer.StatusCode, path)
		assert.Equal(t, "application/json", answer.Header.Get("Content-Type"), path)
		assert.True(t, json.Valid(data), path)
	}
}

// TestOtherPages refuses what a page of another server asks.
func TestOtherPages(t *testing.T) {
	s := serve(t, nil)
	for site, want := range map[string]int{"": 200, "same-origin": 200, "cross-site": 403} {
		r, err := http.NewRequest("POST", s.URL+"/v1/completions", strings.NewReader(`{"prompt": [1], "max_tokens": 1}`))
		require.NoError(t, err)
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, want, answer.StatusCode, site)
	}
}

// custom serves with options of a test's own.
func custom(t *testing.T, m batch.Model, change func(*Options)) *httptest.Server {
	log, registry := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	b := batch.New(m, batch.Options{Vocab: vocab, MaxTokens: 50, MaxSessions: 2, MaxStep: 4, Log: log, Metrics: batch.NewMetrics(registry)})
	t.Cleanup(func() { b.Close(context.Background()) })
	o := Options{Name: "m", MaxTokens: 50, Metrics: registry, Log: log, Healthy: func() error { return nil }, Schedule: b.Submit}
	change(&o)
	api, _ := New(o)
	s := httptest.NewServer(api)
	t.Cleanup(s.Close)
	return s
}

// TestKeys refuses requests without one of the keys.
func TestKeys(t *testing.T) {
	s := custom(t, counting{}, func(o *Options) { o.Keys = []string{"one", "another"} })
	for key, want := range map[string]int{"": 401, "Bearer on": 401, "Bearer one": 200, "Bearer another": 200, "one": 401} {
		r, err := http.NewRequest("GET", s.URL+"/v1/models", nil)
		require.NoError(t, err)
		if key != "" {
			r.Header.Set("Authorization", key)
		}
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, want, answer.StatusCode, key)
	}
}

// TestBodies holds what a body may take, of whatever shape: nothing is made of what is too much.
func TestBodies(t *testing.T) {
	s := &Server{o: Options{Name: "m", MaxTokens: 600, Text: tokenizer(t)}, bodies: make(chan struct{}, 1)}
	long := func(one string, n int) string { return strings.Repeat(one, n) }
	for name, body := range map[string]string{
		"lists":    `{"prompt":[` + long("[],", 1<<22) + `[]]}`,
		"numbers":  `{"prompt":[` + long("1,", 1<<22) + `1]}`,
		"text":     `{"prompt":"` + long("ab ", 1<<22) + `"}`,
		"word":     `{"prompt":"` + long("a", 1<<22) + `"}`,
		"stops":    `{"prompt":[1],"stop_token_ids":[` + long("1,", 1<<22) + `1]}`,
		"deep":     `{"prompt":[1],"user":` + long("[", 1<<22) + `}`,
		"members":  `{"prompt":[1]` + long(`,"a":1`, 1<<20) + `}`,
		"unclosed": `{"prompt":[` + long("[", 1<<22),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := s.completion(t.Context(), []byte(body))
		assert.ErrorIs(t, err, batch.ErrRequest, name)
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(3*len(body)+1<<20), "%s: bytes that were allocated", name)
	}
	s.o.Chat = template(t)
	user := func(content string) string { return `{"messages":[{"role":"user","content":` + content + `}]` }
	for name, body := range map[string]string{
		"messages": `{"messages":[` + long("{},", 1<<22) + `{}]}`,
		"numbers":  `{"messages":[` + long("1,", 1<<22) + `1]}`,
		"text":     user(`"`+long("ab ", 1<<22)+`"`) + "}",
		"parts":    user(`[`+long(`{"type":"text","text":"a"},`, 1<<19)+`{}]`) + "}",
		"deep":     user(long("[", 1<<22)) + "}",
		"tools":    user(`"x"`) + `,"tools":[` + long("{},", 1<<22) + `{}]}`,
		"kwargs":   user(`"x"`) + `,"chat_template_kwargs":{"a":[` + long("{},", 1<<22) + `{}]}}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := s.chat(t.Context(), []byte(body))
		assert.ErrorIs(t, err, batch.ErrRequest, name)
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(5*len(body)+1<<20), "%s: bytes that were allocated", name)
	}
	assert.Less(t, bodyLimit(600), int64(300<<10))
	assert.Equal(t, int64(mostBody), bodyLimit(1<<30))
}

// TestNames refuses pages that ask under a name that anybody may have pointed here.
func TestNames(t *testing.T) {
	open, _ := New(Options{Name: "m", Host: "box", Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	locked, _ := New(Options{Name: "m", Keys: []string{"k"}, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	ask := func(h http.Handler, host, origin string) int {
		r, w := httptest.NewRequest("GET", "/v1/models", nil), httptest.NewRecorder()
		if r.Host = host; origin != "" {
			r.Header.Set("Origin", origin)
		}
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, host := range []string{"localhost:8080", "127.0.0.1:8080", "[::1]:8080", "10.0.0.3", "box:8080", "a.localhost"} {
		assert.Equal(t, 200, ask(open, host, "http://"+host), host)
	}
	assert.Equal(t, 403, ask(open, "rebound.example:8080", "http://rebound.example:8080"))
	assert.Equal(t, 200, ask(open, "server.example:8080", ""), "no page asks")
	assert.Equal(t, 401, ask(locked, "rebound.example:8080", "http://rebound.example:8080"), "the page has no key")
}
