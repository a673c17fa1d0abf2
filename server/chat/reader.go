package chat

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/vkmla/vkmla/server/text"
)

// Markers of DeepSeek-V4's answers.
const (
	thinks       = "<think>"
	thought      = "</think>"
	callsBegin   = "<｜DSML｜tool_calls>"
	callsEnd     = "</｜DSML｜tool_calls>"
	callBegin    = `<｜DSML｜invoke name="`
	callEnd      = "</｜DSML｜invoke>"
	nameEnd      = `">`
	argument     = `<｜DSML｜parameter name="`
	argumentText = `" string="true">`
	argumentJSON = `" string="false">`
	argumentEnd  = "</｜DSML｜parameter>"
)

// Shown are tokens that a Reader needs as text, even if they are special.
var Shown = []string{thinks, thought, "｜DSML｜"}

// Delta is a piece of an answer.
type Delta struct {
	Reasoning, Content string
	Calls              []Call
}

// Call is a piece of a call of a tool. The first piece has ID and Name; the arguments of all are
// JSON together.
type Call struct {
	Index     int
	ID, Name  string
	Arguments string
}

// state names the part of an answer that a Reader reads.
type state int

const (
	beginning state = iota
	reasoning
	content
	between // calls
	naming  // a call
	within  // a call, between arguments
	knowing // the name of an argument
	words   // an argument that is a text
	values  // an argument that is JSON
	plain   // content to the end
)

// ends are the markers that a state ends at. Calls stand apart from the content by an empty line.
var ends = map[state][]string{
	reasoning: {thought},
	content:   {"\n\n" + callsBegin, callsBegin},
	between:   {callBegin, callsEnd},
	naming:    {nameEnd},
	within:    {argument, callEnd},
	knowing:   {argumentText, argumentJSON},
	words:     {argumentEnd},
	values:    {argumentEnd},
}

// Reader takes an answer apart while it comes.
type Reader struct {
	state state
	tools bool
	rest  string // not yet understood
	empty string // what calls or arguments have around them, in case that none comes

	calls    int
	finished int    // of them
	name     string // of a call or an argument, as far as it is there
	value    string // of an argument that is JSON
	further  bool   // the call has arguments already
}

// Reader begins the answer to a prompt. Without tools what looks like a call is content.
func (c *Conversation) Reader(prompt string) *Reader {
	r := &Reader{tools: len(c.tools) > 0}
	if strings.HasSuffix(strings.TrimRight(prompt, "\n"), thinks) {
		r.state = reasoning
	}
	return r
}

// Called reports whether the answer calls tools and each call has ended.
func (r *Reader) Called() bool { return r.calls > 0 && r.finished == r.calls }

// Add takes the next text and returns what can be said of it.
func (r *Reader) Add(text string) (d Delta) {
	r.rest += text
	for r.rest != "" && r.step(&d) {
	}
	return d
}

// End returns what was held back because a marker might have begun there.
func (r *Reader) End() (d Delta) {
	text := r.rest
	r.rest = ""
	if r.state != between && r.state != within || strings.TrimSpace(text) != "" {
		r.say(&d, text, -1)
	}
	return d
}

// step goes to the next marker, or as far as there can be none.
func (r *Reader) step(d *Delta) (more bool) {
	switch {
	case r.state == beginning && strings.HasPrefix(r.rest, thinks):
		r.rest, r.state = r.rest[len(thinks):], reasoning
		return true
	case r.state == beginning && strings.HasPrefix(thinks, r.rest):
		return false
	case r.state == beginning:
		r.state = content
	}
	if r.state == content && !r.tools {
		r.state = plain
	}
	before, marker := text.Until(&r.rest, ends[r.state])
	r.say(d, before, marker)
	return marker >= 0
}

// say reports a text up to a marker of the state that it belongs to; -1: more of it may come.
func (r *Reader) say(d *Delta, text string, marker int) {
	switch r.state {
	case reasoning:
		d.Reasoning += text
		if marker == 0 {
			r.state = content
		}
	case beginning, content, plain:
		d.Content += text
		if marker >= 0 {
			r.state, r.empty = between, ends[content][marker]
		}
	case between, within:
		if r.empty += text; strings.TrimSpace(text) != "" { // no form that is known: as it stands there
			d.Content += r.empty
			if marker >= 0 {
				d.Content += ends[r.state][marker]
			}
			r.state = plain
		} else if marker >= 0 {
			r.follow(d, marker == 0)
		}
	case naming:
		if r.name += text; marker == 0 {
			d.Calls = append(d.Calls, Call{Index: r.calls, ID: fmt.Sprintf("call_%016x", rand.Uint64()), Name: r.name})
			r.calls, r.state, r.further = r.calls+1, within, false
		}
	case knowing:
		if r.name += text; marker >= 0 {
			r.know(d, marker == 0)
		}
	case words:
		r.argue(d, inner(text))
		if marker == 0 {
			r.argue(d, `"`)
			r.state = within
		}
	case values:
		if r.value += text; marker == 0 {
			if !json.Valid([]byte(r.value)) {
				r.value = quoted(r.value)
			}
			r.argue(d, r.value)
			r.state = within
		}
	}
}

// follow goes on after a marker between calls or between arguments, which begins one or is the end.
func (r *Reader) follow(d *Delta, begins bool) {
	r.name, r.empty = "", ""
	switch {
	case begins:
		r.state++ // naming or knowing
	case r.state == between:
		r.state = content
	default:
		if !r.further {
			r.argue(d, "{")
		}
		r.argue(d, "}")
		r.state, r.finished = between, r.finished+1
	}
}

// know writes the name of an argument.
func (r *Reader) know(d *Delta, text bool) {
	before := "{"
	if r.further {
		before = ", "
	}
	r.argue(d, before+quoted(r.name)+": ")
	if r.further, r.value, r.state = true, "", values; text {
		r.state = words
		r.argue(d, `"`)
	}
}

// argue adds to the arguments of the call that is open.
func (r *Reader) argue(d *Delta, s string) {
	if n := len(d.Calls); n == 0 || d.Calls[n-1].Index != r.calls-1 {
		d.Calls = append(d.Calls, Call{Index: r.calls - 1})
	}
	d.Calls[len(d.Calls)-1].Arguments += s
}

// inner is a text as it stands in the quotes of JSON.
func inner(s string) string {
	s = quoted(s)
	return s[1 : len(s)-1]
}
