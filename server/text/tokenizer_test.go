package text

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakegguf"
)

// merges of the tokenizer that tests use, in the letters of the file: Ġ is a space.
var merges = []string{"a a", "l l", "Ġ Ġ", "h e", "he ll", "hell o", "Ġ hello", "aa aa",
	"Ã ©", "1 2", "12 3", "ĠĠ ĠĠ", "b c", "a bc", "o Ġ"}

// tokenizer is a tokenizer.json: 256 bytes, what merges make, and three added tokens.
func tokenizer(change func(file map[string]any)) []byte {
	letters := slices.Sorted(maps.Keys(alphabet()))
	vocab := map[string]int{}
	for _, r := range letters {
		vocab[string(r)] = len(vocab)
	}
	for _, m := range merges {
		vocab[strings.ReplaceAll(m, " ", "")] = len(vocab)
	}
	var pre []any
	for _, p := range deepseek {
		pre = append(pre, map[string]any{"type": "Split", "pattern": map[string]any{"Regex": p}, "behavior": "Isolated", "invert": false})
	}
	pre = append(pre, map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
	added := func(id int, content string, special bool) map[string]any {
		return map[string]any{"id": id, "content": content, "special": special, "lstrip": false, "rstrip": false, "single_word": false}
	}
	f := map[string]any{
		"version": "1.0", "added_tokens": []any{added(1000, "<｜begin▁of▁sentence｜>", true), added(1001, "<think>", false),
			added(1002, "<think>er", false)},
		"normalizer":     map[string]any{"type": "Sequence", "normalizers": []any{}},
		"pre_tokenizer":  map[string]any{"type": "Sequence", "pretokenizers": pre},
		"post_processor": map[string]any{"type": "ByteLevel"}, "decoder": map[string]any{"type": "ByteLevel"},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges, "dropout": nil, "byte_fallback": false},
	}
	if change != nil {
		change(f)
	}
	data, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return data
}

func open(t *testing.T, config string, change func(map[string]any)) *Tokenizer {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), tokenizer(change), 0o666))
	if config != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(config), 0o666))
	}
	k, err := Open(dir)
	require.NoError(t, err)
	return k
}

// TestCut cuts texts as the patterns do that look ahead: of several spaces the last one stays with
// the word after them.
func TestCut(t *testing.T) {
	k := open(t, "", nil)
	for s, want := range map[string][]string{
		"Hello  world":      {"Hello", " ", " world"},
		"x   \n\n  y ":      {"x", "   \n\n", " ", " y", " "},
		"12345, 6":          {"123", "45", ",", " ", "6"},
		"你好world。":          {"你好", "world", "。"},
		"f(a_b) => {\n}\n":  {"f", "(a", "_b", ")", " =>", " {\n", "}\n"},
		"don't été e\u0301": {"don", "'t", " été", " e\u0301"},
		"カタカナ ひらがな":         {"カタカナ", " ", "ひらがな"},
		"\u00a0\u3000x\tz":  {"\u00a0", "\u3000x", "\tz"},
		"":                  nil,
	} {
		var got []string
		require.NoError(t, cut(s, k.splits, func(piece string) error { got = append(got, piece); return nil }))
		assert.Equal(t, want, got, "%q", s)
	}
}

// pairsRef merges the pair of the smallest rank, the leftmost of equal ones, while there is any.
func pairsRef(k *Tokenizer, s string) (ids []int32) {
	for i := range len(s) {
		ids = append(ids, k.bytes[s[i]])
	}
	for {
		best, at := merge{rank: 1 << 30}, -1
		for i := range len(ids) - 1 {
			if m, ok := k.merges[[2]int32{ids[i], ids[i+1]}]; ok && m.rank < best.rank {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, best.token)
	}
}

// TestEncode compares random texts with the definition, and what they decode to with the texts.
func TestEncode(t *testing.T) {
	k := open(t, "", nil)
	rng := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "a", "aa", "l", "hello", " hello", " ", "  ", "\n", "é", "123", "b", "c",
		"界", "🙂", "!", "<", "\x00", "\u00ad"}
	for range 2000 {
		var b strings.Builder
		for range rng.IntN(30) {
			b.WriteString(parts[rng.IntN(len(parts))])
		}
		ids, err := k.Encode(t.Context(), b.String(), 1<<20)
		require.NoError(t, err)
		var want []int32
		var pieces []string
		err = cut(b.String(), k.splits, func(piece string) error { pieces = append(pieces, piece); return nil })
		require.NoError(t, err)
		for _, p := range pieces {
			want = append(want, pairsRef(k, p)...)
		}
		require.Equal(t, want, ids, "%q", b.String())
		d, got := k.Decoder(), ""
		for _, id := range ids {
			more := d.Add(id)
			require.True(t, utf8.ValidString(more))
			got += more
		}
		require.Equal(t, b.String(), got+d.End())
	}
	long, err := k.Encode(t.Context(), strings.Repeat("a", mostWord), 1<<20) // in much less than the square of its length
	require.NoError(t, err)
	assert.Len(t, long, mostWord/4)
}

// TestOriginal has the tokens and texts of Hugging Face's tokenizers, which testdata/record.js
// records, with a tokenizer.json of DeepSeek's form. Some of its added tokens begin in others.
func TestOriginal(t *testing.T) {
	type vector struct {
		Text string
		IDs  []int32
	}
	var original struct{ Encode, Decode []vector }
	data, err := os.ReadFile(filepath.Join("testdata", "original.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &original))
	k, err := Open("testdata")
	require.NoError(t, err)
	assert.Len(t, original.Encode, 155)
	for _, v := range original.Encode {
		ids, err := k.Encode(t.Context(), v.Text, 1<<20)
		require.NoError(t, err)
		assert.Equal(t, v.IDs, append([]int32{}, ids...), "%q", v.Text)
	}
	assert.Len(t, original.Decode, 40)
	for _, v := range original.Decode {
		d, s := k.Decoder(), ""
		for _, id := range v.IDs {
			s += d.Add(id)
		}
		assert.Equal(t, v.Text, s+d.End(), "%v", v.IDs)
	}
}

// TestAdded finds added tokens, the longest at a place, and leaves special ones out of texts.
func TestAdded(t *testing.T) {
	k := open(t, "", nil)
	ids, err := k.Encode(t.Context(), "<｜begin▁of▁sentence｜>aa<think>er<think><thin", 1<<20)
	require.NoError(t, err)
	assert.Equal(t, []int32{1000, k.pairs(nil, "aa")[0], 1002, 1001}, ids[:4])
	d, s := k.Decoder(), ""
	for _, id := range append(ids, 7777) {
		s += d.Add(id)
	}
	assert.Equal(t, "aa<think>er<think><thin", s+d.End())

	for _, k := range []*Tokenizer{
		open(t, `{"add_bos_token": true, "bos_token": {"__type": "AddedToken", "content": "<｜begin▁of▁sentence｜>"}}`, nil),
		open(t, `{"add_bos_token": true, "bos_token": "<｜begin▁of▁sentence｜>"}`, nil),
		open(t, "", func(f map[string]any) {
			f["post_processor"] = map[string]any{"type": "Sequence", "processors": []any{map[string]any{"type": "ByteLevel"},
				map[string]any{"type": "TemplateProcessing", "single": []any{map[string]any{"SpecialToken": map[string]any{"id": "B"}},
					map[string]any{"Sequence": map[string]any{"id": "A"}}},
					"special_tokens": map[string]any{"B": map[string]any{"ids": []int{1000}}}}}}
		})} {
		for _, s := range []string{"aa", "<｜begin▁of▁sentence｜>aa"} {
			ids, err := k.Encode(t.Context(), s, 1<<20)
			require.NoError(t, err)
			assert.Equal(t, []int32{1000, k.pairs(nil, "aa")[0]}, ids)
		}
	}
}

// TestDecoder gives characters when they are whole, and U+FFFD for bytes that never will be.
func TestDecoder(t *testing.T) {
	k := open(t, "", nil)
	d := k.Decoder()
	var got []string
	for _, b := range []byte("é🙂\xe7\x95x\xff\xf0\x9f") {
		got = append(got, d.Add(k.bytes[b]))
	}
	assert.Equal(t, []string{"", "é", "", "", "", "🙂", "", "", "\uFFFDx", "\uFFFD", "", ""}, got)
	assert.Equal(t, "\uFFFD", d.End())
	assert.Empty(t, d.End())
	var none *Tokenizer
	assert.Empty(t, none.Decoder().Add(1))
}

// TestRefused refuses what it would not read exactly.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tokenizer.json")
	for _, none := range []string{dir, filepath.Join(dir, "none"), "/dev/null"} {
		k, err := Open(none)
		assert.NoError(t, err, "who opens the model says what is wrong")
		assert.Nil(t, k)
	}
	require.NoError(t, os.Mkdir(file, 0o777))
	_, err := Open(dir)
	assert.ErrorIs(t, err, fs.ErrInvalid, "a pipe, too, has no end")
	typed := func(name, typ string) func(map[string]any) {
		return func(f map[string]any) { f[name] = map[string]any{"type": typ} }
	}
	in := func(name, field string, v any) func(map[string]any) {
		return func(f map[string]any) { f[name].(map[string]any)[field] = v }
	}
	for _, change := range []func(map[string]any){
		typed("model", "Unigram"), typed("normalizer", "NFC"), typed("pre_tokenizer", "Metaspace"), typed("decoder", "WordPiece"),
		typed("post_processor", "BertProcessing"), in("model", "byte_fallback", true), in("model", "merges", []string{"a"}),
		in("model", "merges", []string{"a x9"}), in("model", "vocab", map[string]int{"a": 1}),
		in("pre_tokenizer", "pretokenizers", []any{map[string]any{"type": "Split", "behavior": "Isolated",
			"pattern": map[string]any{"Regex": "("}}}),
		in("pre_tokenizer", "pretokenizers", []any{map[string]any{"type": "ByteLevel", "add_prefix_space": true}}),
		func(f map[string]any) { f["added_tokens"].([]any)[0].(map[string]any)["lstrip"] = true },
	} {
		_, err := parse(tokenizer(change), nil)
		assert.ErrorIs(t, err, ErrFormat)
		assert.ErrorContains(t, err, "want")
	}
	_, err = parse(tokenizer(func(f map[string]any) { f["added_tokens"].([]any)[0].(map[string]any)["content"] = "" }), nil)
	assert.ErrorContains(t, err, "added_tokens: got an empty text for token 1000")
	_, err = parse([]byte("{"), nil)
	assert.ErrorIs(t, err, ErrFormat)
	_, err = parse(tokenizer(nil), []byte(`{"add_bos_token": true, "bos_token": "<s>"}`))
	assert.ErrorContains(t, err, "bos_token")
}

// TestBounds ends encoding at the first token too many, at a word without an end, and when its
// caller has gone.
func TestBounds(t *testing.T) {
	k := open(t, "", nil)
	_, err := k.Encode(t.Context(), strings.Repeat("ab ", 1000), 50)
	assert.ErrorIs(t, err, ErrLong)
	before := testing.AllocsPerRun(1, func() { _, err = k.Encode(t.Context(), strings.Repeat("ab ", 1<<20), 50) })
	assert.ErrorIs(t, err, ErrLong)
	assert.Less(t, before, 1000.0, "allocations for a long text that is refused")
	_, err = k.Encode(t.Context(), strings.Repeat("a", mostWord+1), 1<<20)
	assert.ErrorIs(t, err, ErrLong)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = k.Encode(ctx, "some words", 50)
	assert.ErrorIs(t, err, context.Canceled)
}

// TestConversations reads what conversations need: a template, where it has a file of its own that
// one, and how texts begin and end. Special tokens are text where they are asked for.
func TestConversations(t *testing.T) {
	const config = `{"bos_token": {"content": "<｜begin▁of▁sentence｜>"}, "eos_token": "<e>", "chat_template": `
	k := open(t, config+`"{{ 1 }}"}`, nil)
	assert.Equal(t, []string{"{{ 1 }}", "<｜begin▁of▁sentence｜>", "<e>"}, []string{k.Chat, k.BOS, k.EOS})
	assert.Equal(t, "b", open(t, config+`[{"name": "x", "template": "a"}, {"name": "default", "template": "b"}]}`, nil).Chat)
	_, err := parse(tokenizer(nil), []byte(config+`3}`))
	assert.ErrorContains(t, err, "chat_template")
	assert.Empty(t, open(t, `{}`, nil).Chat)
	keys := append(ggufKeys(t), fakegguf.Key{Name: "tokenizer.chat_template", Value: "{{ 2 }}"})
	g, err := openKeys(t, keys)
	require.NoError(t, err)
	assert.Equal(t, []string{"{{ 2 }}", "<｜begin▁of▁sentence｜>", ""}, []string{g.Chat, g.BOS, g.EOS})

	dir := t.TempDir()
	plain, err := Plain("<a>", "<b>")
	require.NoError(t, err)
	for name, data := range map[string]string{"tokenizer.json": string(plain), "chat_template.jinja": "own",
		"tokenizer_config.json": config + `"x"}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o666))
	}
	p, err := Open(dir)
	require.NoError(t, err)
	assert.Equal(t, "own", p.Chat)
	assert.True(t, p.Has("<a>"))
	assert.False(t, p.Has("<a"))
	ids, err := p.Encode(t.Context(), "<a>é<b>", 9)
	require.NoError(t, err)
	assert.Equal(t, []int32{0, 2 + 0xc3, 2 + 0xa9, 1}, ids)
	hidden, shown := p.Decoder(), p.Decoder("<b>")
	a, b := "", ""
	for _, id := range ids {
		a, b = a+hidden.Add(id), b+shown.Add(id)
	}
	assert.Equal(t, "é", a)
	assert.Equal(t, "é<b>", b)
}
