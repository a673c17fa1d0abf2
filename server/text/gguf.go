package text

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/dlclark/regexp2/v2"

	"github.com/vkmla/vkmla/internal/gguf"
)

// deepseek are the patterns of DeepSeek's tokenizers since V3, each cuts what the one before it
// left.
var deepseek = []string{`\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`,
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
		`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`}

// cuts are the patterns by the names that tokenizer.ggml.pre has for them.
var cuts = map[string][]string{"joyai-llm": deepseek, "deepseek-v3": deepseek}

// Types of tokens in GGUF.
const (
	tokenNormal  = 1
	tokenControl = 3 // special
	tokenAdded   = 4
)

// openGGUF reads the tokenizer of a GGUF file, nil where it has none.
func openGGUF(path string) (t *Tokenizer, err error) {
	m, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if _, there := m.Keys["tokenizer.ggml.tokens"]; !there {
		return nil, nil
	}
	err = gguf.Guard(func() error {
		t, err = fromKeys(m.Keys)
		return err
	})
	return t, err
}

func fromKeys(keys map[string]gguf.Value) (*Tokenizer, error) {
	kind, _ := keys["tokenizer.ggml.model"].Text()
	pre, _ := keys["tokenizer.ggml.pre"].Text()
	splits, known := cuts[pre]
	switch {
	case kind != "gpt2":
		return nil, wrong("tokenizer.ggml.model", quoted(keys["tokenizer.ggml.model"]), "gpt2")
	case !known:
		return nil, wrong("tokenizer.ggml.pre", quoted(keys["tokenizer.ggml.pre"]), "joyai-llm or deepseek-v3")
	}
	f, err := fileOf(keys)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{merges: map[[2]int32]merge{}, tokens: map[int32]string{}, hidden: map[int32]struct{}{}}
	for _, read := range []func(*file) error{t.vocabulary, t.rules, t.extras} {
		if err := read(f); err != nil {
			return nil, err
		}
	}
	for _, p := range splits {
		t.splits = append(t.splits, regexp2.MustCompile(p))
	}
	return t, t.prompts(keys)
}

// quoted returns a text as messages have it, of another value its type.
func quoted(v gguf.Value) string {
	if s, ok := v.Text(); ok {
		return fmt.Sprintf("%.60q", s)
	}
	return v.String()
}

// prompts reads what prompts begin with, and the template of conversations.
func (t *Tokenizer) prompts(keys map[string]gguf.Value) error {
	const template, add = "tokenizer.chat_template", "tokenizer.ggml.add_bos_token"
	ok := false
	if v, there := keys[template]; there {
		if t.Chat, ok = v.Text(); !ok {
			return wrong(template, v, "string")
		}
	}
	adds := false
	if v, there := keys[add]; there {
		if adds, ok = v.Bool(); !ok {
			return wrong(add, v, "bool")
		}
	}
	bos, err := special(keys, "bos", adds)
	if err != nil {
		return err
	}
	eos, err := special(keys, "eos", false)
	if t.BOS, t.EOS = t.tokens[bos], t.tokens[eos]; adds {
		t.before = []int32{bos}
	}
	return err
}

// special returns the token that texts begin or end with, gone where there is none.
func special(keys map[string]gguf.Value, name string, needed bool) (int32, error) {
	key := "tokenizer.ggml." + name + "_token_id"
	v, there := keys[key]
	if !there && !needed {
		return gone, nil
	}
	id, ok := v.Int()
	if n := keys["tokenizer.ggml.tokens"].Len(); !ok || id < 0 || id >= int64(n) {
		return gone, wrong(key, fmt.Sprintf("%v %d", v, id), fmt.Sprintf("one of %d tokens", n))
	}
	return int32(id), nil
}

// ggufSpelled are members of tokenizer.json by the keys that GGUF has for them.
var ggufSpelled = map[string]string{"model.vocab": "tokenizer.ggml.tokens", "added_tokens": "tokenizer.ggml.tokens",
	"model.merges": "tokenizer.ggml.merges"}

// fileOf returns what a tokenizer.json would say of tokens and merges.
func fileOf(keys map[string]gguf.Value) (*file, error) {
	tokens, types, merges := keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"], keys["tokenizer.ggml.merges"]
	_, typed := keys["tokenizer.ggml.token_type"]
	n := tokens.Len()
	switch {
	case !tokens.IsArray():
		return nil, wrong("tokenizer.ggml.tokens", tokens, "an array of string")
	case n > math.MaxInt32:
		return nil, wrong("tokenizer.ggml.tokens", tokens, "fewer")
	case typed && (!types.IsArray() || types.Len() != n):
		return nil, wrong("tokenizer.ggml.token_type", types, fmt.Sprintf("an array of i32, %d of them", n))
	case !merges.IsArray(): // without them every text would be bytes
		return nil, wrong("tokenizer.ggml.merges", merges, "an array of string")
	}
	kinds := make([]int64, n)
	for i := range kinds {
		kinds[i] = tokenNormal
	}
	for i, v := range types.All() {
		var ok bool
		if kinds[i], ok = v.Int(); !ok {
			return nil, wrong("tokenizer.ggml.token_type", types, "an array of i32")
		}
	}
	f := &file{spelled: ggufSpelled}
	f.Model.Type, f.Model.Vocab = "BPE", map[string]int32{}
	for i, v := range tokens.All() {
		word, ok := v.Text()
		if !ok {
			return nil, wrong("tokenizer.ggml.tokens", tokens, "an array of string")
		}
		switch kinds[i] {
		case tokenNormal:
			if other, twice := f.Model.Vocab[word]; twice {
				return nil, wrong("tokenizer.ggml.tokens", fmt.Sprintf("%.60q as token %d and %d", word, other, i), "each once")
			}
			f.Model.Vocab[word] = int32(i)
		case tokenControl, tokenAdded:
			f.Added = append(f.Added, added{ID: int32(i), Content: word, Special: kinds[i] == tokenControl})
		}
	}
	for _, v := range merges.All() {
		two, ok := v.Text()
		raw, err := json.Marshal(two)
		if !ok || err != nil {
			return nil, wrong("tokenizer.ggml.merges", merges, "an array of string")
		}
		f.Model.Merges = append(f.Model.Merges, raw)
	}
	return f, nil
}
