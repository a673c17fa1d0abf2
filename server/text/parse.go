package text

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dlclark/regexp2/v2"
)

// file is tokenizer.json. What is not listed changes no token.
type file struct {
	Added      []added `json:"added_tokens"`
	Normalizer *part   `json:"normalizer"`
	Pre        *part   `json:"pre_tokenizer"`
	Post       *part   `json:"post_processor"`
	Decoder    *part   `json:"decoder"`
	Model      struct {
		Type     string            `json:"type"`
		Vocab    map[string]int32  `json:"vocab"`
		Merges   []json.RawMessage `json:"merges"` // "a b" or ["a", "b"]
		Dropout  *float64          `json:"dropout"`
		Fallback bool              `json:"byte_fallback"`
		Prefix   string            `json:"continuing_subword_prefix"`
		Suffix   string            `json:"end_of_word_suffix"`
		Whole    bool              `json:"ignore_merges"`
	} `json:"model"`

	spelled map[string]string // members by the names that another format has for them
}

// at returns the name of a member where the tokenizer was read from.
func (f *file) at(member string) string { return cmp.Or(f.spelled[member], member) }

// added is a token that stands for itself.
type added struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`
	Single     bool   `json:"single_word"`
	Left       bool   `json:"lstrip"`
	Right      bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// part is a step of the way from text to tokens, or a sequence of such.
type part struct {
	Type        string `json:"type"`
	Normalizers []part `json:"normalizers"`
	Pre         []part `json:"pretokenizers"`
	Processors  []part `json:"processors"`

	Pattern struct {
		Regex, String *string
	} `json:"pattern"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`
	Prefix   bool   `json:"add_prefix_space"`
	Regex    *bool  `json:"use_regex"`

	Single []struct {
		Special *struct {
			ID string `json:"id"`
		} `json:"SpecialToken"`
	} `json:"single"`
	Specials map[string]struct {
		IDs []int32 `json:"ids"`
	} `json:"special_tokens"`
}

// gpt2 is the pattern of a ByteLevel that has use_regex.
const gpt2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func wrong(what string, got any, want string) error {
	return fmt.Errorf("%w: %s: got %v, want %s", ErrFormat, what, got, want)
}

// parse reads tokenizer.json, and tokenizer_config.json where there is one.
func parse(data, config []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	t := &Tokenizer{merges: map[[2]int32]merge{}, tokens: map[int32]string{}, hidden: map[int32]struct{}{}}
	for _, read := range []func(*file) error{t.vocabulary, t.rules, t.extras, t.way} {
		if err := read(&f); err != nil {
			return nil, err
		}
	}
	return t, t.beginning(config)
}

// vocabulary reads the tokens, which are written in letters that stand for bytes.
func (t *Tokenizer) vocabulary(f *file) error {
	m := &f.Model
	switch {
	case m.Type != "BPE":
		return wrong("model.type", fmt.Sprintf("%q", m.Type), "BPE")
	case m.Dropout != nil && *m.Dropout != 0, m.Fallback, m.Prefix != "", m.Suffix != "":
		return wrong("model", "dropout, byte_fallback, continuing_subword_prefix or end_of_word_suffix", "none")
	}
	letters := alphabet()
	for i := range t.bytes {
		t.bytes[i] = gone
	}
	for word, id := range m.Vocab {
		var b strings.Builder
		for _, r := range word {
			if x, ok := letters[r]; ok {
				b.WriteByte(x)
			} else {
				b.WriteRune(r)
			}
		}
		t.tokens[id] = b.String()
		if b.Len() == 1 {
			t.bytes[b.String()[0]] = id
		}
	}
	for i, id := range t.bytes {
		if id == gone {
			return wrong(f.at("model.vocab"), fmt.Sprintf("no token of the byte %#x", i), "one of each byte")
		}
	}
	if m.Whole {
		t.whole = map[string]int32{}
		for _, id := range m.Vocab {
			t.whole[t.tokens[id]] = id
		}
	}
	return nil
}

// alphabet are the letters that stand for bytes: those that can be seen for themselves, the others
// by U+0100 and on.
func alphabet() map[rune]byte {
	letters, next := map[rune]byte{}, rune(0x100)
	for b := range 256 {
		r := rune(b)
		if r < '!' || r > '~' && r < '¡' || r == '\u00AD' {
			r = next
			next++
		}
		letters[r] = byte(b)
	}
	return letters
}

// merge names the rule of a rank.
func (f *file) merge(rank int) string { return fmt.Sprintf("%s[%d]", f.at("model.merges"), rank) }

// rules reads which tokens are merged.
func (t *Tokenizer) rules(f *file) error {
	for rank, raw := range f.Model.Merges {
		var text string
		var two []string
		if json.Unmarshal(raw, &text) == nil {
			two = strings.Split(text, " ")
		} else if json.Unmarshal(raw, &two) != nil {
			two = nil
		}
		if len(two) != 2 {
			return wrong(f.merge(rank), string(raw), "two tokens")
		}
		a, known := f.Model.Vocab[two[0]]
		b, known2 := f.Model.Vocab[two[1]]
		both, known3 := f.Model.Vocab[two[0]+two[1]]
		if !known || !known2 || !known3 {
			return wrong(f.merge(rank), string(raw), "tokens of "+f.at("model.vocab")+", and both together one")
		}
		if _, twice := t.merges[[2]int32{a, b}]; !twice {
			t.merges[[2]int32{a, b}] = merge{int32(rank), both}
		}
	}
	return nil
}

// extras reads the added tokens.
func (t *Tokenizer) extras(f *file) error {
	for _, a := range f.Added {
		switch {
		case a.Content == "":
			return wrong(f.at("added_tokens"), fmt.Sprintf("an empty text for token %d", a.ID), "one that stands for itself")
		case a.Single, a.Left, a.Right:
			return wrong("added_tokens", fmt.Sprintf("%q with single_word, lstrip or rstrip", a.Content), "none of these")
		}
		last := 0
		if a.Normalized {
			last = 1
		}
		t.added[last].add(a.Content, a.ID)
		t.tokens[a.ID] = a.Content
		if a.Special {
			t.hidden[a.ID] = struct{}{}
		}
	}
	return nil
}

// way reads how a text is cut, and what comes before and after it.
func (t *Tokenizer) way(f *file) error {
	for _, n := range flat(f.Normalizer, func(p *part) []part { return p.Normalizers }) {
		return wrong("normalizer", n.Type, "none")
	}
	last := ""
	for _, p := range flat(f.Pre, func(p *part) []part { return p.Pre }) {
		if last = p.Type; last == "ByteLevel" && !p.Prefix {
			if p.Regex == nil || *p.Regex {
				t.splits = append(t.splits, regexp2.MustCompile(gpt2))
			}
			continue
		}
		if err := t.split(p); err != nil {
			return err
		}
	}
	if last != "ByteLevel" {
		return wrong("pre_tokenizer", fmt.Sprintf("%q at the end", last), "ByteLevel without add_prefix_space")
	}
	if f.Decoder == nil || f.Decoder.Type != "ByteLevel" {
		return wrong("decoder", "another", "ByteLevel")
	}
	for _, p := range flat(f.Post, func(p *part) []part { return p.Processors }) {
		switch p.Type {
		case "ByteLevel": // about offsets
		case "TemplateProcessing":
			list := &t.before
			for _, x := range p.Single {
				if x.Special == nil {
					list = &t.after
				} else {
					*list = append(*list, p.Specials[x.Special.ID].IDs...)
				}
			}
		default:
			return wrong("post_processor", p.Type, "ByteLevel or TemplateProcessing")
		}
	}
	return nil
}

// split reads a pattern whose matches are pieces, as is what lies between them.
func (t *Tokenizer) split(p part) error {
	pattern := ""
	switch {
	case p.Type != "Split" || p.Behavior != "Isolated":
		return wrong("pre_tokenizer", p.Type+" "+p.Behavior, "Split that is Isolated, or ByteLevel without add_prefix_space")
	case p.Pattern.Regex != nil:
		pattern = *p.Pattern.Regex
	case p.Pattern.String != nil:
		pattern = regexp2.Escape(*p.Pattern.String)
	}
	re, err := regexp2.Compile(pattern)
	if err != nil || pattern == "" {
		return wrong("pre_tokenizer", fmt.Sprintf("%q (%v)", pattern, err), "a pattern")
	}
	t.splits = append(t.splits, re)
	return nil
}

// flat lists the parts of sequences.
func flat(p *part, of func(*part) []part) (list []part) {
	switch {
	case p == nil:
	case p.Type == "Sequence":
		for _, x := range of(p) {
			list = append(list, flat(&x, of)...)
		}
	default:
		list = append(list, *p)
	}
	return list
}

// beginning reads tokenizer_config.json: add_bos_token, and what conversations need.
func (t *Tokenizer) beginning(config []byte) error {
	var c struct {
		Add  bool            `json:"add_bos_token"`
		BOS  word            `json:"bos_token"`
		EOS  word            `json:"eos_token"`
		Chat json.RawMessage `json:"chat_template"` // a text, or a list of them with names
	}
	if config == nil {
		return nil
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	t.BOS, t.EOS = string(c.BOS), string(c.EOS)
	if json.Unmarshal(c.Chat, &t.Chat) != nil {
		var list []struct{ Name, Template string }
		if err := json.Unmarshal(c.Chat, &list); err != nil && c.Chat != nil {
			return fmt.Errorf("tokenizer_config.json: chat_template: %w", err)
		}
		for _, x := range list {
			if x.Name == "default" {
				t.Chat = x.Template
			}
		}
	}
	if !c.Add || len(t.before) > 0 {
		return nil
	}
	for i := range t.added {
		if _, size, id := t.added[i].find(t.BOS); size > 0 && size == len(t.BOS) {
			t.before = []int32{id}
			return nil
		}
	}
	return fmt.Errorf("tokenizer_config.json: bos_token: got %q, want one of added_tokens", t.BOS)
}

// word is a token: "token" or {"content": "token"}.
type word string

// UnmarshalJSON takes both.
func (w *word) UnmarshalJSON(data []byte) error {
	var token struct{ Content string }
	if json.Unmarshal(data, &token.Content) != nil {
		if err := json.Unmarshal(data, &token); err != nil {
			return err
		}
	}
	*w = word(token.Content)
	return nil
}
