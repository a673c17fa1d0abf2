package chat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"
)

// Error names what of a conversation is wrong.
type Error struct{ Param, Got, Want string }

func (e *Error) Error() string { return fmt.Sprintf("%s: got %.60s, want %s", e.Param, e.Got, e.Want) }

// Conversation holds the messages and tools that a prompt is made of.
type Conversation struct {
	messages, tools []jinja.Value
	variables       map[string]jinja.Value
}

// roles are those that messages may have.
const roles = "system, developer, user, assistant or tool"

// Read reads messages and tools as the usual API has them. tools may be empty.
//
// Errors: *Error.
func Read(messages, tools []byte) (*Conversation, error) {
	c := &Conversation{variables: map[string]jinja.Value{}}
	list, err := objects("messages", messages)
	if err != nil {
		return nil, err
	}
	for i, m := range list {
		if err := message(fmt.Sprintf("messages[%d]", i), m.AsDict()); err != nil {
			return nil, err
		}
	}
	if c.messages = list; len(list) == 0 || word(list[len(list)-1], "role") == "assistant" {
		return nil, &Error{"messages", "none for the assistant to answer", "the last one to be of another role"}
	}
	inOrder(list)
	if len(tools) > 0 {
		if c.tools, err = objects("tools", tools); err != nil {
			return nil, err
		}
	}
	for i, t := range c.tools {
		if err := tool(fmt.Sprintf("tools[%d]", i), t.AsDict()); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Size returns the bytes of the messages' texts, which the prompt has at least.
func (c *Conversation) Size() (n int) {
	for _, m := range c.messages {
		n += len(word(m, "content"))
	}
	return n
}

// Set gives the template a variable of a name, as JSON has its value. Those that Render sets are
// refused.
//
// Errors: *Error.
func (c *Conversation) Set(name string, value []byte) error {
	if slices.Contains(rendered, name) {
		return &Error{name, string(value), "none: the server gives the template its own"}
	}
	v, err := parse(value)
	if err != nil {
		return &Error{name, err.Error(), "JSON within bounds"}
	}
	c.variables[name] = v
	return nil
}

func objects(name string, data []byte) ([]jinja.Value, error) {
	v, err := parse(data)
	if err != nil {
		return nil, &Error{name, err.Error(), "JSON within bounds"}
	}
	if !v.IsList() {
		return nil, &Error{name, v.String(), "a list"}
	}
	for i, x := range v.AsList().Items {
		if !x.IsDict() {
			return nil, &Error{fmt.Sprintf("%s[%d]", name, i), x.String(), "an object"}
		}
	}
	return v.AsList().Items, nil
}

// shown writes a member for an error.
func shown(v jinja.Value) string {
	if v.IsUndefined() {
		return "none"
	}
	return v.String()
}

// word returns a member of an object that is a text, "" for all else.
func word(object jinja.Value, name string) string {
	if v, ok := object.AsDict().Get(name); ok && v.IsString() {
		return v.AsString()
	}
	return ""
}

// message checks a message, and brings it into the form that templates expect.
func message(at string, m *jinja.Dict) error {
	role, _ := m.Get("role")
	if !role.IsString() || !slices.Contains([]string{"system", "developer", "user", "assistant", "tool"}, role.AsString()) {
		return &Error{at + ".role", shown(role), roles}
	}
	assistant := role.AsString() == "assistant"
	for _, name := range m.OrderedKeys() {
		v := m.Data[name]
		at := at + "." + name
		var err error
		switch {
		case name == "role":
		case name == "content":
			m.Data[name], err = contentOf(at, v, assistant)
		case v.IsNone() || v.IsList() && v.AsList().Len() == 0:
			m.Data[name] = jinja.Undefined() // what clients send back of an answer that had none
		case name == "name" || name == "tool_call_id" && role.AsString() == "tool" || name == "reasoning_content" && assistant:
			if !v.IsString() {
				err = &Error{at, v.String(), "a text"}
			}
		case name == "tool_calls" && assistant:
			err = callsOf(at, v)
		default:
			err = &Error{at, v.String(), "no such member: this server would not honour it"}
		}
		if err != nil {
			return err
		}
	}
	if _, ok := m.Get("content"); !ok && !assistant {
		return &Error{at + ".content", "none", "a text, or a list of parts that are texts"}
	}
	return nil
}

// contentOf makes one text of a message's parts.
func contentOf(at string, v jinja.Value, assistant bool) (jinja.Value, error) {
	switch {
	case v.IsString() || v.IsNone() && assistant:
		return v, nil
	case !v.IsList():
		return v, &Error{at, v.String(), "a text, or a list of parts that are texts"}
	}
	var all strings.Builder
	for i, part := range v.AsList().Items {
		at := fmt.Sprintf("%s[%d]", at, i)
		if !part.IsDict() {
			return v, &Error{at, part.String(), `a part such as {"type": "text", "text": "..."}`}
		}
		if kind, _ := part.AsDict().Get("type"); word(part, "type") != "text" {
			return v, &Error{at + ".type", shown(kind), "text: this server takes no images, sounds or files"}
		}
		if words, _ := part.AsDict().Get("text"); !words.IsString() {
			return v, &Error{at + ".text", shown(words), "a text"}
		}
		all.WriteString(word(part, "text"))
	}
	return jinja.NewString(all.String()), nil
}

// callsOf checks the calls of an earlier answer. Their arguments, JSON in a text, become values.
func callsOf(at string, v jinja.Value) error {
	if !v.IsList() {
		return &Error{at, v.String(), "a list"}
	}
	for i, c := range v.AsList().Items {
		at := fmt.Sprintf("%s[%d]", at, i)
		if !c.IsDict() || word(c, "type") != "function" {
			return &Error{at, c.String(), `{"id": "...", "type": "function", "function": {...}}`}
		}
		f, _ := c.AsDict().Get("function")
		if !f.IsDict() || word(f, "name") == "" {
			return &Error{at + ".function", shown(f), `{"name": "...", "arguments": "{...}"}`}
		}
		written, _ := f.AsDict().Get("arguments")
		if !written.IsString() {
			return &Error{at + ".function.arguments", shown(written), "JSON in a text"}
		}
		arguments, err := parse([]byte(written.AsString()))
		if err != nil || !arguments.IsDict() { // as the model wrote it: it may have been cut
			arguments = jinja.NewDict()
			arguments.AsDict().Set("arguments", written)
		}
		f.AsDict().Set("arguments", arguments)
	}
	return nil
}

func tool(at string, t *jinja.Dict) error {
	if kind, _ := t.Get("type"); !kind.IsString() || kind.AsString() != "function" {
		return &Error{at + ".type", shown(kind), "function"}
	}
	f, _ := t.Get("function")
	if !f.IsDict() || word(f, "name") == "" {
		return &Error{at + ".function", shown(f), "an object with a name"}
	}
	if strict, _ := f.AsDict().Get("strict"); strict.IsTruthy() {
		return &Error{at + ".function.strict", "true", "false: this server has no grammars"}
	}
	return nil
}

// inOrder puts the results of tools into the order of their calls: each side by side with others.
func inOrder(messages []jinja.Value) {
	place := map[string]int{}
	for i := 0; i < len(messages); {
		var results []int
		for ; i < len(messages) && slices.Contains([]string{"user", "tool"}, word(messages[i], "role")); i++ {
			if word(messages[i], "role") == "tool" {
				results = append(results, i)
			}
		}
		sorted := make([]jinja.Value, len(results))
		for k, at := range results {
			sorted[k] = messages[at]
		}
		slices.SortStableFunc(sorted, func(a, b jinja.Value) int {
			return place[word(a, "tool_call_id")] - place[word(b, "tool_call_id")]
		})
		for k, at := range results {
			messages[at] = sorted[k]
		}
		if i == len(messages) {
			return
		}
		if made, _ := messages[i].AsDict().Get("tool_calls"); made.IsList() {
			clear(place)
			for k, c := range made.AsList().Items {
				place[word(c, "id")] = k
			}
		}
		i++
	}
}
