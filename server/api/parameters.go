package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/vkmla/vkmla/server/batch"
)

const (
	mostLogprobs = 100 // candidates of a position
	mostStops    = 256 // tokens that end an answer
	mostBiases   = 1024
	mostWords    = 4 // texts that end an answer
)

// task is a request that was understood.
type task struct {
	prompts [][]int32
	n       int
	request batch.Request // without a prompt
	stop    []string
	stream  bool
	usage   bool     // the last event of a stream counts tokens
	form    form     // of its answers
	shown   []string // special tokens that are part of its answers
}

// neutral are members that clients send and that change no answer.
var neutral = []string{"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"}

// sampling reads what completions and conversations have in common.
func (s *Server) sampling(m *reader, c *task) {
	if name := value(m, "model", s.o.Name); name != s.o.Name && m.err == nil {
		m.err = s.otherModel(name)
	}
	r := &c.request
	c.n = number(m, "n", 1, 1, mostAnswers)
	r.Temperature = number(m, "temperature", 1.0, 0, 100)
	r.TopP = max(math.SmallestNonzeroFloat64, number(m, "top_p", 1.0, 0, 1)) // 0: the most probable token
	r.MinP = number(m, "min_p", 0.0, 0, 1)
	r.TopK = max(0, number(m, "top_k", 0, -1, 1<<30))
	r.Seed = uint64(value(m, "seed", rand.Int64()))
	r.Stop = []int32(value(m, "stop_token_ids", tokenIDs(nil)))
	if len(r.Stop) > mostStops {
		m.bad("stop_token_ids", fmt.Sprintf("%d tokens", len(r.Stop)), "at most %d", mostStops)
	}
	if !value(m, "ignore_eos", false) {
		r.Stop = append(slices.Clip(r.Stop), s.o.EOS...)
	}
	c.stop = m.stops(s.o.Text != nil)
	c.stream = value(m, "stream", false)
	c.usage = value(m, "stream_options", struct {
		Usage bool `json:"include_usage"`
	}{}).Usage
	r.Presence = number(m, "presence_penalty", 0.0, -2, 2)
	r.Frequency = number(m, "frequency_penalty", 0.0, -2, 2)
	r.Repetition = number(m, "repetition_penalty", 1.0, 0.01, 100)
	r.Bias = m.biases()
	if f := value(m, "response_format", map[string]any{"type": "text"}); f["type"] != "text" {
		m.bad("response_format", string(m.all["response_format"]), `{"type": "text"}: this server has no grammars`)
	}
}

// reader remembers the first member that is wrong.
type reader struct {
	all  map[string]json.RawMessage
	used []string
	err  error
}

func (m *reader) bad(param string, got any, want string, a ...any) {
	if m.err == nil {
		m.err = bad(param, got, want, a...)
	}
}

// done refuses what was not asked for.
func (m *reader) done(c *task) error {
	for _, name := range slices.Sorted(maps.Keys(m.all)) {
		raw := m.all[name]
		if !slices.Contains(m.used, name) && !slices.Contains(neutral, name) && string(raw) != "null" {
			m.bad(name, string(raw), "no such member: this server would not honour it")
		}
	}
	if len(c.prompts)*c.n > mostAnswers {
		m.bad("n", c.n, "at most %d answers to all %d prompts", mostAnswers, len(c.prompts))
	}
	return m.err
}

// has reports whether a member says something. null says nothing.
func (m *reader) has(name string) bool {
	m.used = append(m.used, name)
	return m.all[name] != nil && string(m.all[name]) != "null"
}

// value reads a member that may be absent. An object has no members that T does not have.
func value[T any](m *reader, name string, absent T) (v T) {
	if !m.has(name) {
		return absent
	}
	d := json.NewDecoder(bytes.NewReader(m.all[name]))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		m.bad(name, string(m.all[name]), "%s", kindOf(reflect.TypeFor[T]()))
		return absent
	}
	return v
}

// kindOf names what JSON has for a type of Go.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Int32 {
			return "a list of token ids, such as [1, 2, 3]"
		}
		return "a list"
	case reflect.Struct:
		return "an object with " + t.Field(0).Tag.Get("json") + " alone"
	case reflect.Map:
		if t.Elem().Kind() == reflect.Float64 {
			return "an object of numbers, by token id"
		}
	}
	return "an object"
}

// number is value for a number of a range.
func number[T int | float64](m *reader, name string, absent, low, high T) T {
	v := value(m, name, absent)
	if !(v >= low && v <= high) {
		m.bad(name, v, "%v to %v", low, high)
	}
	return v
}

// biases reads what is added to the logits of tokens, which JSON has as names.
func (m *reader) biases() map[int32]float64 {
	list := value(m, "logit_bias", map[int32]float64(nil))
	if len(list) > mostBiases {
		m.bad("logit_bias", fmt.Sprintf("%d tokens", len(list)), "at most %d", mostBiases)
	}
	for id, b := range list {
		if !(b >= -100 && b <= 100) {
			m.bad("logit_bias", fmt.Sprintf("%v for %d", b, id), "-100 to 100")
		}
	}
	return list
}

// stops reads one text or a list of texts.
func (m *reader) stops(text bool) (list []string) {
	if !m.has("stop") {
		return nil
	}
	raw := m.all["stop"]
	var one string
	if json.Unmarshal(raw, &one) == nil {
		list = []string{one}
	} else if err := json.Unmarshal(raw, &list); err != nil {
		m.bad("stop", string(raw), "a text or a list of texts")
	}
	switch {
	case len(list) > mostWords:
		m.bad("stop", fmt.Sprintf("%d texts", len(list)), "at most %d", mostWords)
	case slices.Contains(list, ""):
		m.bad("stop", `""`, "texts that are not empty")
	case len(list) > 0 && !text:
		m.bad("stop", string(raw), "stop_token_ids: the model has no tokenizer.json")
	}
	return list
}

// tokenIDs are token ids without null, which encoding/json takes for 0.
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
