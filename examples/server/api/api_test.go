package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/examples/server/batch"
	"github.com/vkmla/vkmla/examples/server/model"
)

// counting continues with the token that is one more.
type counting struct{}

func (counting) NewSequence() (*model.Sequence, error) { return &model.Sequence{}, nil }
func (counting) Step(_ context.Context, chunks ...model.Chunk) (logits [][]float32, err error) {
	for _, c := range chunks {
		for _, at := range c.Logits {
			l := make([]float32, 20)
			l[(c.Tokens[at]+1)%20] = 5
			logits = append(logits, l)
		}
	}
	return logits, nil
}

func serve(t *testing.T, healthy error) *httptest.Server {
	log, registry := slog.New(slog.NewTextHandler(io.Discard, nil)), prometheus.NewRegistry()
	s := batch.New(counting{}, batch.Options{Vocab: 20, MaxTokens: 50, MaxSessions: 2, MaxStep: 4, Log: log,
		Metrics: batch.NewMetrics(registry)})
	t.Cleanup(func() { s.Close(context.Background()) })
	server := httptest.NewServer(New(Options{Name: "m", EOS: []int32{9}, Metrics: registry, Log: log,
		Healthy: func() error { return healthy }, Schedule: s.Submit}))
	t.Cleanup(server.Close)
	return server
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
		require.True(t, ok, event)
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

func TestRefused(t *testing.T) {
	s := serve(t, nil)
	for _, body := range []string{``, `{}`, `{"prompt": "text"}`, `{"prompt": []}`, `{"prompt": [20]}`, `{"prompt": [-1]}`,
		`{"prompt": [1], "logprobs": 101}`, `{"prompt": [1], "temperature": -1}`, `{"prompt": [1], "n": 2}`,
		`{"prompt": [1], "max_tokens": 50}`, `{"prompt": [1], "top_p": 0.5}`, `{"prompt": [1], "stop": ["x"]}`} {
		status, answer := post(t, s, body)
		assert.Equal(t, 400, status, body)
		assert.Contains(t, answer, `"invalid_request_error"`, body)
	}
}

func TestOperators(t *testing.T) {
	for path, want := range map[string]string{"/healthz": "ok", "/metrics": "server_requests_running",
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
