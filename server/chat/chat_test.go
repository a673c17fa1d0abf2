package chat

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/server/text"
)

// recorded is a conversation and the prompt that Python's jinja2 makes of it.
type recorded struct {
	Template        string
	Messages, Tools json.RawMessage
	Variables       map[string]json.RawMessage
	Prompt          string
}

const bos, eos = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"

// TestRender holds prompts against those of Python's jinja2, which for DeepSeek-V4's own form are
// those of the program that is released beside it: see testdata/record.py.
func TestRender(t *testing.T) {
	data, err := os.ReadFile("testdata/conversations.json")
	require.NoError(t, err)
	var all map[string]recorded
	require.NoError(t, json.Unmarshal(data, &all))
	for name, r := range all {
		source := ""
		if r.Template != "" {
			data, err := os.ReadFile("testdata/" + r.Template)
			require.NoError(t, err)
			source = string(data)
		}
		k, err := New(source, bos, eos)
		require.NoError(t, err)
		c, err := Read(r.Messages, r.Tools)
		require.NoError(t, err, name)
		for name, v := range r.Variables {
			require.NoError(t, c.Set(name, v))
		}
		prompt, err := k.Render(c)
		require.NoError(t, err, name)
		assert.Equal(t, r.Prompt, prompt, name)
	}
}

// TestOpen takes the template of a file, of the model, or DeepSeek-V4's where its marks are tokens.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	tokenizer := func(added ...string) *text.Tokenizer {
		data, err := text.Plain(added...)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o666))
		k, err := text.Open(dir)
		require.NoError(t, err)
		return k
	}
	c, err := Read([]byte(`[{"role": "user", "content": "x"}]`), nil)
	require.NoError(t, err)
	prompt := func(file string, k *text.Tokenizer) string {
		k2, err := Open(file, k)
		require.NoError(t, err)
		s, err := k2.Render(c)
		require.NoError(t, err)
		return s
	}
	v4 := tokenizer("<｜User｜>", "<｜Assistant｜>", "</think>")
	assert.Equal(t, "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜><think>", prompt("", v4))
	v4.Chat, v4.BOS = "{{ bos_token }}model", "<s>"
	assert.Equal(t, "<s>model", prompt("", v4))
	file := filepath.Join(dir, "t.jinja")
	require.NoError(t, os.WriteFile(file, []byte("file{{ bos_token }}"), 0o666))
	assert.Equal(t, "file<s>", prompt(file, v4))
	none, err := Open("", tokenizer("<s>"))
	require.NoError(t, err)
	assert.Nil(t, none)
	none, err = Open(file, nil)
	require.NoError(t, err)
	assert.Nil(t, none)
	_, err = Open(file+"x", v4)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// TestRefused names what of a conversation is wrong.
func TestRefused(t *testing.T) {
	for param, x := range map[string][2]string{
		"messages":                    {`[]`},
		"messages[0]":                 {`["hi"]`},
		"messages[0].role":            {`[{"role": "function", "content": "x"}]`},
		"messages[0].content":         {`[{"role": "user"}]`},
		"messages[0].content[1].type": {`[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]`},
		"messages[0].content[0].text": {`[{"role": "user", "content": [{"type": "text", "text": 1}]}]`},
		"messages[0].audio":           {`[{"role": "user", "content": "x", "audio": {"id": "a"}}]`},
		"messages[0].tool_calls":      {`[{"role": "user", "content": "x", "tool_calls": [{}]}]`},
		"messages[0].tool_calls[0]":   {`[{"role": "assistant", "content": "x", "tool_calls": [{}]}]`},
		"tools":                       {`[{"role": "user", "content": "x"}]`, `{}`},
		"tools[0].type":               {`[{"role": "user", "content": "x"}]`, `[{"type": "web_search"}]`},
		"tools[0].function":           {`[{"role": "user", "content": "x"}]`, `[{"type": "function"}]`},
		"tools[0].function.strict": {`[{"role": "user", "content": "x"}]`,
			`[{"type": "function", "function": {"name": "f", "strict": true}}]`},
		"messages[0].tool_calls[0].function.arguments": {`[{"role": "assistant", "content": null,
			"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}]`},
	} {
		_, err := Read([]byte(x[0]), []byte(x[1]))
		var e *Error
		if assert.ErrorAs(t, err, &e, param) {
			assert.Equal(t, param, e.Param)
			assert.Contains(t, e.Error(), "want")
		}
	}
	_, err := Read([]byte(`[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]`), nil)
	assert.ErrorContains(t, err, "the last one to be of another role")
	_, err = Read([]byte("["+strings.Repeat(`{},`, 200_000)+`{}]`), nil)
	assert.ErrorContains(t, err, "more than 131072 values")
	_, err = Read([]byte(`[{"role": "user", "role": "system", "content": "x"}]`), nil)
	assert.ErrorContains(t, err, "twice")
	_, err = New("{% if %}", bos, eos)
	assert.ErrorIs(t, err, ErrTemplate)
	k, err := New("{{ raise_exception('no ' ~ messages[0].role) }}", bos, eos)
	require.NoError(t, err)
	c, err := Read([]byte(`[{"role": "user", "content": "x"}]`), nil)
	require.NoError(t, err)
	_, err = k.Render(c)
	assert.ErrorIs(t, err, ErrTemplate)
	assert.ErrorContains(t, err, "no user")
}

// said is an answer that was put together of its pieces.
type said struct {
	Reasoning, Content string
	Calls              []Call
}

func (m *said) add(d Delta) {
	m.Reasoning, m.Content = m.Reasoning+d.Reasoning, m.Content+d.Content
	for _, c := range d.Calls {
		if c.Index == len(m.Calls) {
			m.Calls = append(m.Calls, c)
		} else {
			m.Calls[c.Index].Arguments += c.Arguments
		}
	}
}

// answered takes an answer apart in pieces of n characters; 0: whole.
func answered(t *testing.T, tools, prompt, answer string, n int) (m said, called bool) {
	t.Helper()
	c, err := Read([]byte(`[{"role": "user", "content": "x"}]`), []byte(tools))
	require.NoError(t, err)
	r := c.Reader(prompt)
	for answer != "" {
		size := len(answer)
		if n > 0 {
			size = 0
			for range n {
				_, k := utf8.DecodeRuneInString(answer[size:])
				size += k
			}
		}
		m.add(r.Add(answer[:size]))
		answer = answer[size:]
	}
	m.add(r.End())
	for i := range m.Calls {
		assert.Regexp(t, "^call_[0-9a-f]{16}$", m.Calls[i].ID)
		m.Calls[i].ID = ""
	}
	return m, r.Called()
}

const someTools = `[{"type": "function", "function": {"name": "f"}}]`

// TestReader takes answers apart, in pieces of any size.
func TestReader(t *testing.T) {
	const calls = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n" +
		"<｜DSML｜parameter name=\"a\" string=\"true\">x \"<y>\"\n｜</｜DSML｜parameter>\n" +
		"<｜DSML｜parameter name=\"b\" string=\"false\">[1, {\"c\": null}]</｜DSML｜parameter>\n</｜DSML｜invoke>\n" +
		"<｜DSML｜invoke name=\"g\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
	both := []Call{{Name: "f", Arguments: `{"a": "x \"<y>\"\n｜", "b": [1, {"c": null}]}`}, {Index: 1, Name: "g", Arguments: "{}"}}
	for _, x := range []struct {
		prompt, tools, answer string
		want                  said
		called                bool
	}{
		{"</think>", "", "hello", said{Content: "hello"}, false},
		{"<think>", "", "hm\n</think>hello", said{Reasoning: "hm\n", Content: "hello"}, false},
		{"<think>\n", "", "hm", said{Reasoning: "hm"}, false},
		{"", "", "<think>hm</think>hello", said{Reasoning: "hm", Content: "hello"}, false},
		{"</think>", "", "a < b\n\n<think>", said{Content: "a < b\n\n<think>"}, false},
		{"</think>", someTools, "a\n\n", said{Content: "a\n\n"}, false},
		{"</think>", someTools, "So:" + calls, said{Content: "So:", Calls: both}, true},
		{"<think>", someTools, "hm</think>" + calls[2:], said{Reasoning: "hm", Calls: both}, true},
		{"</think>", "", "So:" + calls, said{Content: "So:" + calls}, false},
		{"</think>", someTools, calls[:strings.Index(calls, "｜</")],
			said{Calls: []Call{{Name: "f", Arguments: `{"a": "x \"<y>\"\n`}}}, false},
		{"</think>", someTools, "a\n\n<｜DSML｜tool_calls>\nno call", said{Content: "a\n\n<｜DSML｜tool_calls>\nno call"}, false},
		{"</think>", someTools, strings.Replace(calls, "</｜DSML｜invoke>", "oh </｜DSML｜invoke>", 1),
			said{Calls: []Call{{Name: "f", Arguments: both[0].Arguments[:len(both[0].Arguments)-1]}},
				Content: "\noh </｜DSML｜invoke>" + calls[strings.Index(calls, "\n<｜DSML｜invoke name=\"g"):]}, false},
		{"</think>", someTools, strings.Replace(calls, "[1, {", "[1, ", 1), said{Calls: []Call{
			{Name: "f", Arguments: `{"a": "x \"<y>\"\n｜", "b": "[1, \"c\": null}]"}`}, both[1]}}, true},
	} {
		for n := range 8 {
			got, called := answered(t, x.tools, x.prompt, x.answer, n)
			assert.Equal(t, x.want, got, "%q in pieces of %d", x.answer, n)
			assert.Equal(t, x.called, called, "%q in pieces of %d", x.answer, n)
		}
	}
}

// FuzzReader takes any answer apart. In pieces it is the same as whole, and arguments of calls that
// have ended are JSON.
func FuzzReader(f *testing.F) {
	for _, s := range []string{"<think>a</think>b", "a\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n" +
		"<｜DSML｜parameter name=\"a\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"} {
		f.Add(s, byte(1))
	}
	f.Fuzz(func(t *testing.T, s string, n byte) {
		s = strings.ToValidUTF8(s, "\uFFFD")
		whole, called := answered(t, someTools, "", s, 0)
		pieces, _ := answered(t, someTools, "", s, max(1, int(n)))
		assert.Equal(t, whole, pieces)
		for _, c := range whole.Calls {
			if called {
				assert.True(t, json.Valid([]byte(c.Arguments)), c.Arguments)
			}
		}
	})
}

// TestLong renders the longest conversation and the largest tool that are taken, in a time that
// grows with their size alone.
func TestLong(t *testing.T) {
	k, err := New("", bos, eos)
	require.NoError(t, err)
	list := strings.Repeat(`{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, `, 13_000)
	c, err := Read([]byte("["+list+`{"role": "user", "content": "z"}]`), []byte(someTools))
	require.NoError(t, err)
	began := time.Now()
	prompt, err := k.Render(c)
	require.NoError(t, err)
	assert.Equal(t, 13_001, strings.Count(prompt, "<｜User｜>"))
	t.Log(time.Since(began))
}
