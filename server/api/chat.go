package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/server/batch"
	"github.com/vkmla/vkmla/server/chat"
	"github.com/vkmla/vkmla/server/text"
)

// mostChatDepth bounds lists and objects inside each other in messages and tools.
const mostChatDepth = 64

// chat understands a body of /v1/chat/completions.
func (s *Server) chat(ctx context.Context, body []byte) (*task, error) {
	if s.o.Chat == nil {
		return nil, bad("messages", "a conversation", "a prompt for /v1/completions: the model has no chat template, "+
			"neither chat_template.jinja nor one in tokenizer_config.json or its GGUF file")
	}
	raw := map[string]json.RawMessage{}
	keep := func(name string) func(*files.Scanner) error {
		return func(scan *files.Scanner) error {
			from := scan.At()
			if err := scan.Skip(mostChatDepth); err != nil {
				return fmt.Errorf("%w: %s: %w", batch.ErrRequest, name, err)
			}
			raw[name] = body[from:scan.At()]
			return nil
		}
	}
	all, err := object(body, map[string]func(*files.Scanner) error{"messages": keep("messages"), "tools": keep("tools")})
	if err != nil {
		return nil, err
	}
	m := reader{all: all}
	c := &task{shown: chat.Shown}
	talk, err := conversation(&m, raw["messages"], raw["tools"])
	if err == nil {
		s.sampling(&m, c)
		c.request.Logprobs = value(&m, "logprobs", false)
		if c.request.Top = number(&m, "top_logprobs", 0, 0, mostLogprobs); c.request.Top > 0 && !c.request.Logprobs {
			m.bad("top_logprobs", c.request.Top, "logprobs to be true")
		}
		for _, name := range []string{"max_tokens", "max_completion_tokens"} {
			if m.has(name) {
				c.request.MaxTokens = number(&m, name, 1, 1, s.o.MaxTokens)
			}
		}
		err = m.done(c)
	}
	if err != nil {
		return nil, err
	}
	return c, s.prompt(ctx, c, talk)
}

// prompt makes the prompt of a conversation.
func (s *Server) prompt(ctx context.Context, c *task, talk *chat.Conversation) error {
	if talk.Size()/s.o.Text.Longest() > s.o.MaxTokens { // before it is looked at
		return bad("messages", fmt.Sprintf("texts of %d bytes", talk.Size()), "at most %d tokens", s.o.MaxTokens)
	}
	prompt, err := s.o.Chat.Render(talk)
	if err != nil {
		return fmt.Errorf("%w: messages: %w", batch.ErrRequest, err)
	}
	ids, err := s.encode(ctx, "messages", prompt)
	if err != nil {
		return err
	}
	if c.request.MaxTokens == 0 { // as far as it goes
		c.request.MaxTokens = s.o.MaxTokens - len(ids)
	}
	if c.request.MaxTokens < 1 {
		return bad("messages", fmt.Sprintf("%d tokens", len(ids)), "fewer than %d", s.o.MaxTokens)
	}
	c.prompts = [][]int32{ids}
	f := &chats{begun: map[int]bool{}}
	for range c.n {
		f.readers = append(f.readers, talk.Reader(prompt))
	}
	c.form = f
	return nil
}

// efforts are the values of reasoning_effort, and what templates of DeepSeek-V4 know of them.
var efforts = map[string]string{"none": "", "minimal": "", "low": "high", "medium": "high", "high": "high", "xhigh": "max", "max": "max"}

// conversation reads messages and all that changes their prompt.
func conversation(m *reader, messages, tools json.RawMessage) (*chat.Conversation, error) {
	if messages == nil {
		return nil, bad("messages", "none", `a list such as [{"role": "user", "content": "..."}]`)
	}
	switch choice := value(m, "tool_choice", json.RawMessage(`"auto"`)); string(choice) {
	case `"auto"`:
	case `"none"`:
		tools = nil
	default:
		m.bad("tool_choice", string(choice), "auto or none: this server cannot make the model call a tool")
	}
	if string(tools) == "null" || string(tools) == "[]" {
		tools = nil
	}
	if !value(m, "parallel_tool_calls", true) && tools != nil {
		m.bad("parallel_tool_calls", false, "true: the model decides how many tools it calls")
	}
	if kinds := value(m, "modalities", []string{"text"}); !slices.Equal(kinds, []string{"text"}) {
		m.bad("modalities", kinds, `["text"]`)
	}
	c, err := chat.Read(messages, tools)
	if err != nil {
		return nil, asBad(err)
	}
	return c, variables(m, c)
}

// variables gives the template what the request says about reasoning, in the words of all who have
// a name for it.
func variables(m *reader, c *chat.Conversation) error {
	var thinks *bool
	if kind := value(m, "thinking", struct {
		Type string `json:"type"`
	}{}).Type; kind != "" {
		on := kind == "enabled"
		if thinks = &on; !on && kind != "disabled" {
			m.bad("thinking", kind, `{"type": "enabled"} or {"type": "disabled"}`)
		}
	}
	if asked := value(m, "reasoning_effort", ""); asked != "" {
		effort, known := efforts[asked]
		on := effort != ""
		if thinks = cmp.Or(thinks, &on); !known {
			m.bad("reasoning_effort", asked, "none, minimal, low, medium, high, xhigh or max")
		}
		if on {
			_ = c.Set("reasoning_effort", []byte(`"`+effort+`"`))
		}
	}
	if thinks != nil {
		for _, name := range []string{"thinking", "enable_thinking"} {
			_ = c.Set(name, fmt.Append(nil, *thinks))
		}
	}
	for name, v := range value(m, "chat_template_kwargs", map[string]json.RawMessage(nil)) {
		if err := c.Set(name, v); err != nil {
			return asBad(err)
		}
		if name == "enable_thinking" { // another name of the same
			_ = c.Set("thinking", v)
		}
	}
	return nil
}

func asBad(err error) error {
	var e *chat.Error
	if errors.As(err, &e) {
		return bad(e.Param, e.Got, "%s", e.Want)
	}
	return err
}

// chats is the form of answers in a conversation.
type chats struct {
	readers []*chat.Reader // of each answer
	begun   map[int]bool   // of those that are streamed
}

// message is an answer. Content is null where it only calls tools.
type message struct {
	Role      string  `json:"role"`
	Content   *string `json:"content"`
	Refusal   *string `json:"refusal"`
	Reasoning string  `json:"reasoning_content,omitempty"`
	Calls     []call  `json:"tool_calls,omitempty"`
}

// delta is a piece of one.
type delta struct {
	Role      string `json:"role,omitempty"`
	Content   string `json:"content,omitempty"`
	Reasoning string `json:"reasoning_content,omitempty"`
	Calls     []call `json:"tool_calls,omitempty"`
}

// call is a call of a tool, or a piece of one, which has an index.
type call struct {
	Index    *int     `json:"index,omitempty"`
	ID       string   `json:"id,omitempty"`
	Type     string   `json:"type,omitempty"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  *message      `json:"message,omitempty"`
	Delta    *delta        `json:"delta,omitempty"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
}

type chatLogprobs struct {
	Content []chatToken `json:"content"`
}

// chatToken is a token with its probability. Bytes are those of its text.
type chatToken struct {
	Token   string      `json:"token"`
	Logprob float32     `json:"logprob"`
	Bytes   []int       `json:"bytes"`
	Top     []chatToken `json:"top_logprobs,omitempty"`
}

type chatResponse struct {
	head
	Choices []chatChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
}

func (*chats) names() (prefix, whole, piece string) {
	return "chatcmpl-", "chat.completion", "chat.completion.chunk"
}

// read takes a piece apart.
func (f *chats) read(c *choice) (d chat.Delta) {
	r := f.readers[c.Index]
	d = r.Add(c.Text)
	if c.Finish != nil {
		end := r.End()
		d.Reasoning, d.Content, d.Calls = d.Reasoning+end.Reasoning, d.Content+end.Content, append(d.Calls, end.Calls...)
		if *c.Finish == string(batch.Stopped) && r.Called() {
			called := "tool_calls"
			c.Finish = &called
		}
	}
	return d
}

func (f *chats) whole(h head, list []choice, u *usage) any {
	r := chatResponse{h, nil, u}
	for _, c := range list {
		d := f.read(&c)
		m := message{Role: "assistant", Content: &d.Content, Reasoning: d.Reasoning}
		for _, x := range d.Calls {
			if x.ID != "" {
				m.Calls = append(m.Calls, call{ID: x.ID, Type: "function", Function: function{Name: x.Name}})
			}
			m.Calls[x.Index].Function.Arguments += x.Arguments
		}
		if d.Content == "" && len(m.Calls) > 0 {
			m.Content = nil
		}
		r.Choices = append(r.Choices, chatChoice{c.Index, &m, nil, c.chatLogprobs(), c.Finish})
	}
	return r
}

// events makes an event of each kind of text, of each piece of a call, and of the end: clients
// do not expect several in one.
func (f *chats) events(h head, c choice) (list []any) {
	d := f.read(&c)
	logprobs := c.chatLogprobs()
	add := func(x delta, finish *string) {
		if !f.begun[c.Index] {
			x.Role, f.begun[c.Index] = "assistant", true
		}
		list = append(list, chatResponse{h, []chatChoice{{c.Index, nil, &x, logprobs, finish}}, nil})
		logprobs = nil
	}
	if d.Reasoning != "" {
		add(delta{Reasoning: d.Reasoning}, nil)
	}
	if d.Content != "" {
		add(delta{Content: d.Content}, nil)
	}
	for _, one := range d.Calls {
		piece := call{Index: &one.Index, ID: one.ID, Function: function{one.Name, one.Arguments}}
		if one.ID != "" {
			piece.Type = "function"
		}
		add(delta{Calls: []call{piece}}, nil)
	}
	if c.Finish != nil || list == nil && logprobs != nil {
		add(delta{}, c.Finish)
	}
	return list
}

func (*chats) counted(h head, u *usage) any { return chatResponse{h, []chatChoice{}, u} }

// chatLogprobs returns what is known of a choice's tokens, nil if it was not asked for.
func (c *choice) chatLogprobs() *chatLogprobs {
	if c.Logprobs == nil {
		return nil
	}
	l := &chatLogprobs{Content: []chatToken{}}
	for _, t := range c.tokens {
		one := c.named(t.ID, t.Logprob)
		for _, x := range t.Top {
			one.Top = append(one.Top, c.named(x.ID, x.Logprob))
		}
		l.Content = append(l.Content, one)
	}
	return l
}

// named describes a token.
func (c *choice) named(id int32, logprob float32) chatToken {
	t := chatToken{Token: text.Valid(c.text(id)), Logprob: logprob, Bytes: []int{}}
	for _, b := range []byte(c.text(id)) {
		t.Bytes = append(t.Bytes, int(b))
	}
	return t
}
