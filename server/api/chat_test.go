package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/server/chat"
	"github.com/vkmla/vkmla/server/model"
)

// template writes each message as its role's first letter and its content, then what thinking says.
func template(t *testing.T) *chat.Template {
	t.Helper()
	k, err := chat.New("{% for m in messages %}{{ m.role[:1] }}:{{ m.content }};{% endfor %}"+
		"{{ tools | tojson if tools else '' }}{{ reasoning_effort }}{% if thinking %}<think>{% endif %}", "", "")
	require.NoError(t, err)
	return k
}

// speaking says a text after any prompt, and ends.
type speaking struct {
	text string
	said map[*model.Sequence]int
}

func (speaking) NewSequence() (*model.Sequence, error) { return &model.Sequence{}, nil }

func (m speaking) Step(_ context.Context, chunks ...model.Chunk) (logits [][]float32, err error) {
	for _, c := range chunks {
		for range c.Logits {
			l := make([]float32, vocab)
			if n := m.said[c.Sequence]; n < len(m.text) {
				l[m.text[n]] = 5
			} else {
				l[299] = 5 // <end>
			}
			m.said[c.Sequence]++
			logits = append(logits, l)
		}
	}
	return logits, nil
}

// talk asks for the answer in a conversation.
func talk(t *testing.T, s *httptest.Server, body string) (int, string) {
	t.Helper()
	r, err := http.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(data)
}

// spoken puts a stream together.
func spoken(t *testing.T, body string) (choices []chatChoice, u *usage) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var r chatResponse
		require.NoError(t, json.Unmarshal([]byte(data), &r), data)
		assert.Equal(t, "chat.completion.chunk", r.Object)
		u = r.Usage
		for _, c := range r.Choices {
			for len(choices) <= c.Index {
				choices = append(choices, chatChoice{Delta: &delta{}})
			}
			all := &choices[c.Index]
			assert.Equal(t, all.Delta.Role == "", c.Delta.Role == "assistant", "the first piece has the role")
			all.Delta.Role = "assistant"
			all.Delta.Content, all.Delta.Reasoning = all.Delta.Content+c.Delta.Content, all.Delta.Reasoning+c.Delta.Reasoning
			all.Finish = c.Finish
			for _, x := range c.Delta.Calls {
				if *x.Index == len(all.Delta.Calls) {
					all.Delta.Calls = append(all.Delta.Calls, x)
				} else {
					all.Delta.Calls[*x.Index].Function.Arguments += x.Function.Arguments
				}
			}
		}
	}
	return choices, u
}

// TestChat asks for an answer, whole and in pieces.
func TestChat(t *testing.T) {
	s := serveText(t, nil, tokenizer(t))
	const one = `{"messages": [{"role": "user", "content": "abc"}], "temperature": 0, "max_tokens": 3`
	status, body := talk(t, s, one+`, "logprobs": true, "top_logprobs": 1}`)
	require.Equal(t, 200, status, body)
	var r chatResponse
	require.NoError(t, json.Unmarshal([]byte(body), &r))
	assert.Equal(t, "chat.completion", r.Object)
	require.Len(t, r.Choices, 1)
	c := r.Choices[0]
	assert.Equal(t, "<=>", *c.Message.Content) // the prompt is u:abc;
	assert.Equal(t, "assistant", c.Message.Role)
	assert.Equal(t, "length", *c.Finish)
	assert.Equal(t, usage{6, 3, 9, nil}, *r.Usage)
	require.Len(t, c.Logprobs.Content, 3)
	assert.Equal(t, "<", c.Logprobs.Content[0].Token)
	assert.Equal(t, []int{'<'}, c.Logprobs.Content[0].Bytes)
	assert.Equal(t, "<", c.Logprobs.Content[0].Top[0].Token)

	_, body = talk(t, s, one+`, "stream": true, "stream_options": {"include_usage": true}, "n": 2}`)
	all, u := spoken(t, body)
	require.Len(t, all, 2)
	for _, c := range all {
		assert.Equal(t, "<=>", c.Delta.Content)
		assert.Equal(t, "length", *c.Finish)
	}
	assert.Equal(t, usage{6, 6, 12, nil}, *u)
	assert.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"))

	// Without a limit it goes as far as the context does.
	_, body = talk(t, s, `{"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]}],
		"temperature": 0, "stop": "C"}`)
	assert.Contains(t, body, `"content":"\u003c=\u003e?@AB"`)
	assert.Contains(t, body, `"finish_reason":"stop"`)
	_, body = talk(t, s, `{"messages": [{"role": "user", "content": "`+strings.Repeat("x", 700)+`"}]}`)
	assert.Contains(t, body, `"param":"messages"`)
}

// TestChatRefused names what is not honoured.
func TestChatRefused(t *testing.T) {
	s := serveText(t, nil, tokenizer(t))
	for param, value := range map[string]string{"tool_choice": `"required"`, "parallel_tool_calls": `false`, "logit_bias": `{"x": 1}`,
		"response_format": `{"type": "json_object"}`, "reasoning_effort": `"huge"`, "thinking": `{"type": "maybe"}`, "max_tokens": `0`,
		"top_logprobs": `3`, "modalities": `["audio"]`, "audio": `{}`, "functions": `[]`, "web_search_options": `{}`, "prediction": `{}`,
		"logprobs": `5`, "echo": `true`, "n": `65`, "prompt": `"x"`, "verbosity": `"high"`,
		"stream_options": `{"other": 1}`} {
		body := fmt.Sprintf(`{"messages": [{"role": "user", "content": "x"}],
			"tools": [{"type": "function", "function": {"name": "f"}}], %q: %s}`, param, value)
		status, answer := talk(t, s, body)
		assert.Equal(t, 400, status, answer)
		assert.Contains(t, answer, fmt.Sprintf(`"param":%q`, param), param)
	}
	for _, body := range []string{`{}`, `{"messages": "x"}`, `{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`,
		`{"messages": [{}]}`, `{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": []}}`} {
		status, answer := talk(t, s, body)
		assert.Equal(t, 400, status, answer)
		assert.Contains(t, answer, `"param":"messages`)
	}
	for member, want := range map[string]string{`"thinking": {"type": "enabled", "budget_tokens": 5}`: "an object with type alone",
		`"tool_choice": {"type": "function"}`: `got {\"type\": \"function\"}`} {
		_, answer := talk(t, s, `{`+member+`, "messages": [{"role": "user", "content": "x"}]}`)
		assert.Contains(t, answer, want)
	}
	status, answer := talk(t, serve(t, nil), `{"messages": [{"role": "user", "content": "x"}]}`)
	assert.Equal(t, 400, status)
	assert.Contains(t, answer, "the model has no chat template")
}

// toolCalls are calls of two tools as a model writes them.
const toolCalls = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n" +
	"<｜DSML｜parameter name=\"a\" string=\"true\">x\"y</｜DSML｜parameter>\n</｜DSML｜invoke>\n" +
	"<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"

// TestTools takes reasoning and calls of tools out of what the model says, whole and in pieces.
func TestTools(t *testing.T) {
	const ask = `{"messages": [{"role": "user", "content": "abc"}], "tools": [{"type": "function", "function": {"name": "f"}}],
		"temperature": 0, "reasoning_effort": "high", "max_tokens": 400, "stop_token_ids": [299]`
	s := serveModel(t, speaking{"hm</think>" + toolCalls, map[*model.Sequence]int{}}, nil, tokenizer(t))
	_, body := talk(t, s, ask+"}")
	var r chatResponse
	require.NoError(t, json.Unmarshal([]byte(body), &r), body)
	require.Len(t, r.Choices, 1, body)
	m := r.Choices[0].Message
	assert.Nil(t, m.Content)
	assert.Equal(t, "hm", m.Reasoning)
	assert.Equal(t, "tool_calls", *r.Choices[0].Finish)
	require.Len(t, m.Calls, 2)
	assert.Equal(t, function{"f", `{"a": "x\"y"}`}, m.Calls[0].Function)
	assert.Equal(t, function{"g", `{}`}, m.Calls[1].Function)
	assert.NotEqual(t, m.Calls[0].ID, m.Calls[1].ID)

	_, body = talk(t, s, ask+`, "stream": true}`)
	all, _ := spoken(t, body)
	require.Len(t, all, 1)
	d := all[0].Delta
	assert.Equal(t, "hm", d.Reasoning)
	assert.Empty(t, d.Content)
	assert.Equal(t, "tool_calls", *all[0].Finish)
	require.Len(t, d.Calls, 2)
	for i, x := range d.Calls {
		assert.Equal(t, m.Calls[i].Function, x.Function)
		assert.NotEmpty(t, x.ID)
		assert.Equal(t, "function", x.Type)
	}

	_, body = talk(t, s, strings.Replace(ask, `"max_tokens"`, `"tool_choice": "none", "max_tokens"`, 1)+"}")
	assert.Contains(t, body, "DSML", "without tools it is content")
	assert.Contains(t, body, `"finish_reason":"stop"`)
}
