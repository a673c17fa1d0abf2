// Package text turns text into tokens and back, as the tokenizer.json beside a model says: byte
// pairs of bytes, which is what DeepSeek's models have.
//
// Patterns are matched by regexp2: they look ahead, which Go's regexp does not. For that reason
// Go libraries that read the whole file give other tokens, some without an error.
//
// Compared with Hugging Face's tokenizers 0.23.2 and the tokenizer.json of DeepSeek-V3: every
// character in several places, and 6,400 texts of code, scripts, white space and added tokens, give
// its tokens, and 5,000 lists of tokens its text. Characters that Go's Unicode tables do not know
// are the exception: that library's are newer, and may end a piece elsewhere.
package text

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/gguf"
)

// ErrFormat: a tokenizer that this package does not read exactly.
var ErrFormat = errors.New("tokenizer")

// Tokenizer is for any number of goroutines.
type Tokenizer struct {
	bytes  [256]int32         // the token of a byte
	whole  map[string]int32   // pieces that are one token without merging; nil: none
	merges map[[2]int32]merge // by the two tokens
	splits []*regexp2.Regexp  // cut a text into pieces, one after the other
	added  [2]trie            // tokens that stand for themselves wherever they are; [1]: normalized ones, found last
	before []int32            // stand in front of every prompt
	after  []int32            // and after it
	tokens map[int32]string   // bytes
	hidden map[int32]struct{} // special: no part of an answer's text

	longest int // bytes of a token

	// Of conversations: the template that makes prompts of them, "" where the model has none, and
	// the tokens that templates call bos_token and eos_token.
	Chat, BOS, EOS string
}

// merge makes a token of two. Those of a smaller rank come first.
type merge struct{ rank, token int32 }

// MostFile is the most bytes of a file that text or templates are read from.
const MostFile = 128 << 20

// Open reads tokenizer.json of a model's folder, and of tokenizer_config.json whether prompts begin
// with the token that texts begin with; or all of a GGUF file, or of a folder with one. Without a
// tokenizer it is nil.
//
// Errors: ErrFormat; those of gguf.Open; the file system's.
func Open(dir string) (*Tokenizer, error) {
	t, err := read(dir)
	switch {
	case err != nil:
		return nil, fmt.Errorf("text: open: %w", err)
	case t == nil:
		return nil, nil
	}
	t.longest = 1
	for _, s := range t.tokens {
		t.longest = max(t.longest, len(s))
	}
	return t, nil
}

func read(dir string) (*Tokenizer, error) {
	file, err := gguf.Find(dir)
	switch {
	case err != nil:
		return nil, err
	case file != "":
		return openGGUF(file)
	}
	var found [3][]byte
	for i, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		found[i], err = files.Read(filepath.Join(dir, name), MostFile)
		none := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
		switch {
		case none && i == 0:
			return nil, nil // where dir is no folder, who opens the model says so
		case err != nil && !none:
			return nil, err
		}
	}
	t, err := parse(found[0], found[1])
	if err == nil && found[2] != nil { // goes before what tokenizer_config.json says
		t.Chat = string(found[2])
	}
	return t, err
}

// ErrLong: a text has more tokens than were asked for, or a word that is too long.
var ErrLong = errors.New("too long")

// mostWord is the most bytes of a piece that merges work on. A longer run without a place to cut is
// no text, and merging takes a hundred times its size in memory.
const mostWord = 128 << 10

// Encode returns the tokens of a text, at most most. Added tokens in it, such as <think>, are
// tokens. A text that has what texts begin with does not get it again. It goes piece by piece and
// ends at the first token too many, or with the context.
//
// Errors: ErrLong; the context's.
func (t *Tokenizer) Encode(ctx context.Context, s string, most int) (ids []int32, err error) {
	if len(s)/t.longest > most { // before it is looked at
		return nil, fmt.Errorf("text: encode: %w: %d bytes, want at most %d tokens of up to %d", ErrLong, len(s), most, t.longest)
	}
	e := encoder{t: t, ctx: ctx, most: most}
	if err := e.between(s, t.added[:]); err != nil {
		return nil, fmt.Errorf("text: encode: %w", err)
	}
	if ids = e.ids; len(ids) < len(t.before) || !slices.Equal(ids[:len(t.before)], t.before) {
		ids = slices.Concat(t.before, ids)
	}
	if ids = append(ids, t.after...); len(ids) > most {
		return nil, fmt.Errorf("text: encode: %w: want at most %d tokens", ErrLong, most)
	}
	return ids, nil
}

// encoder is a text on the way.
type encoder struct {
	t    *Tokenizer
	ctx  context.Context
	most int
	ids  []int32
}

// add takes a token or those of a piece, and says when it is enough.
func (e *encoder) add(piece string) error {
	if len(piece) > mostWord {
		return fmt.Errorf("%w: a word of %d bytes, want at most %d", ErrLong, len(piece), mostWord)
	}
	if e.ids = e.t.pairs(e.ids, piece); len(e.ids) > e.most {
		return fmt.Errorf("%w: want at most %d tokens", ErrLong, e.most)
	}
	return e.ctx.Err()
}

// between turns a text into tokens: added ones, those of the first trie before those of the next,
// and pairs of what lies between them.
func (e *encoder) between(s string, added []trie) error {
	if len(added) == 0 {
		return cut(s, e.t.splits, e.add)
	}
	for s != "" {
		n, size, id := added[0].find(s)
		if err := e.between(s[:n], added[1:]); err != nil {
			return err
		}
		if s = s[n:]; size > 0 {
			e.ids, s = append(e.ids, id), s[size:]
		}
		if len(e.ids) > e.most {
			return fmt.Errorf("%w: want at most %d tokens", ErrLong, e.most)
		}
	}
	return nil
}

// cut cuts a text by the first pattern, its pieces by the next, and so on, and calls f for each.
func cut(s string, splits []*regexp2.Regexp, f func(piece string) error) error {
	if s == "" {
		return nil
	}
	if len(splits) == 0 {
		return f(s)
	}
	at, read := 0, 0 // where the text goes on, in bytes and in runes
	var failed error
	take := func(runes int) string {
		from := at
		for ; read < runes; read++ {
			_, n := utf8.DecodeRuneInString(s[at:])
			at += n
		}
		return s[from:at]
	}
	err := splits[0].FindRunesMatches([]rune(s), 0, func(m regexp2.MatchView) bool {
		first, n, _ := m.GroupRange(0)
		if failed = cut(take(first), splits[1:], f); failed == nil {
			failed = cut(take(first+n), splits[1:], f)
		}
		return failed == nil
	})
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	return cut(s[at:], splits[1:], f)
}

// pairs merges the bytes of a piece: of all neighbours that a rule merges, the rule of the smallest
// rank goes first, the leftmost of equal ones.
func (t *Tokenizer) pairs(ids []int32, s string) []int32 {
	if id, ok := t.whole[s]; ok {
		return append(ids, id)
	}
	list := make([]symbol, len(s))
	for i := range len(s) {
		list[i] = symbol{t.bytes[s[i]], i - 1, i + 1}
	}
	var open queue
	propose := func(left int) {
		if left < 0 || list[left].next >= len(s) {
			return
		}
		a, b := list[left].token, list[list[left].next].token
		if m, ok := t.merges[[2]int32{a, b}]; ok {
			open.push(candidate{m, left, a, b})
		}
	}
	for i := range list {
		propose(i)
	}
	for len(open) > 0 {
		c := open.pop()
		left := &list[c.left]
		if left.token != c.a || left.next >= len(s) || list[left.next].token != c.b {
			continue // something else has been merged here
		}
		list[left.next].token = gone
		left.token, left.next = c.token, list[left.next].next
		if left.next < len(s) {
			list[left.next].previous = c.left
		}
		propose(left.previous)
		propose(c.left)
	}
	for i := 0; i < len(s); i = list[i].next {
		ids = append(ids, list[i].token)
	}
	return ids
}

// symbol is a token of a piece on the way, beginning at some byte.
type symbol struct {
	token          int32
	previous, next int // where its neighbours begin
}

const gone = -1 // the token of a symbol that was merged into the one before

// Longest returns the bytes of the longest token.
func (t *Tokenizer) Longest() int { return t.longest }

// Has reports whether an added token is written like that.
func (t *Tokenizer) Has(word string) bool {
	for i := range t.added {
		if at, size, _ := t.added[i].find(word); at == 0 && size == len(word) {
			return true
		}
	}
	return false
}

// Bytes returns the bytes that a token stands for; special tokens, and those that are not of the
// vocabulary, stand for nothing. It may be a part of a character.
func (t *Tokenizer) Bytes(id int32) string {
	if _, ok := t.hidden[id]; ok {
		return ""
	}
	return t.tokens[id]
}

// trie finds the longest of some words.
type trie struct {
	next map[byte]*trie
	id   int32
	ends bool
}

func (t *trie) add(word string, id int32) {
	for i := range len(word) {
		if t.next == nil {
			t.next = map[byte]*trie{}
		}
		if t.next[word[i]] == nil {
			t.next[word[i]] = &trie{}
		}
		t = t.next[word[i]]
	}
	t.id, t.ends = id, true
}

// find returns where the first word begins, its size, and its token. Without a word both are those
// of the rest: len(s) and 0.
func (t *trie) find(s string) (at, size int, id int32) {
	for at = range len(s) {
		node := t
		for i := at; i < len(s) && node.next != nil; i++ {
			if node = node.next[s[i]]; node == nil {
				break
			}
			if node.ends {
				size, id = i+1-at, node.id
			}
		}
		if size > 0 {
			return at, size, id
		}
	}
	return len(s), 0, 0
}

// Decoder makes text of tokens that come one by one. What it returns never ends in the middle of a
// character.
type Decoder struct {
	t     *Tokenizer
	shown []string
	rest  string
}

// Decoder begins a text, in which the special tokens that are shown stand as they are written.
// Without a tokenizer all text is empty.
func (t *Tokenizer) Decoder(shown ...string) *Decoder { return &Decoder{t: t, shown: shown} }

// Token returns the bytes that a token stands for in this text.
func (d *Decoder) Token(id int32) string {
	if d.t == nil {
		return ""
	}
	if _, special := d.t.hidden[id]; special && slices.Contains(d.shown, d.t.tokens[id]) {
		return d.t.tokens[id]
	}
	return d.t.Bytes(id)
}

// Add returns the text that a token completes. Bytes that belong to no character become U+FFFD, one
// for each beginning of a character that is not completed.
func (d *Decoder) Add(id int32) string {
	s := d.rest + d.Token(id)
	n := len(s) - unfinished(s)
	d.rest = s[n:]
	return Valid(s[:n])
}

// End returns what is left of a character that was not completed.
func (d *Decoder) End() string {
	s := d.rest
	d.rest = ""
	return Valid(s)
}
