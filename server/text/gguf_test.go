package text

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

// ggufKeys describes the tokenizer that tests use, as GGUF does.
func ggufKeys(t *testing.T) []fakegguf.Key {
	var f file
	require.NoError(t, json.Unmarshal(tokenizer(nil), &f))
	tokens, types := make([]string, 1003), make([]int32, 1003)
	for i := range tokens {
		tokens[i], types[i] = fmt.Sprintf("[PAD%d]", i), 5
	}
	for word, id := range f.Model.Vocab {
		tokens[id], types[id] = word, 1
	}
	for _, a := range f.Added {
		tokens[a.ID], types[a.ID] = a.Content, 4
		if a.Special {
			types[a.ID] = 3
		}
	}
	return []fakegguf.Key{{Name: "tokenizer.ggml.model", Value: "gpt2"}, {Name: "tokenizer.ggml.pre", Value: "joyai-llm"},
		{Name: "tokenizer.ggml.tokens", Value: tokens}, {Name: "tokenizer.ggml.token_type", Value: types},
		{Name: "tokenizer.ggml.merges", Value: merges}, {Name: "tokenizer.ggml.bos_token_id", Value: uint32(1000)}}
}

func openKeys(t *testing.T, keys []fakegguf.Key) (*Tokenizer, error) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m.gguf"), fakegguf.Encode(keys, nil), 0o666))
	return Open(dir)
}

// A tokenizer is the same from GGUF as from tokenizer.json.
func TestGGUF(t *testing.T) {
	want := open(t, "", nil)
	got, err := openKeys(t, ggufKeys(t))
	require.NoError(t, err)
	for _, s := range []string{"", "hello hello", "a<think>aaaa <think>er12345 é\n\n  x", "日本語 かな!abc", "<｜begin▁of▁sentence｜>aa",
		"\x00\xff~~ a\tb\r\n", "[PAD7]"} {
		x, err := want.Encode(t.Context(), s, 1000)
		require.NoError(t, err)
		y, err := got.Encode(t.Context(), s, 1000)
		require.NoError(t, err)
		assert.Equal(t, x, y, "%q", s)
		for _, id := range x {
			assert.Equal(t, want.Bytes(id), got.Bytes(id), "%d", id)
		}
	}
	assert.Empty(t, got.Bytes(1000))
	assert.Equal(t, "<think>", got.Bytes(1001))

	k, err := openKeys(t, append(ggufKeys(t), fakegguf.Key{Name: "tokenizer.ggml.add_bos_token", Value: true}))
	require.NoError(t, err)
	ids, err := k.Encode(t.Context(), "a", 1000)
	require.NoError(t, err)
	assert.Equal(t, int32(1000), ids[0])
	assert.Len(t, ids, 2)

	k, err = openKeys(t, nil)
	assert.NoError(t, err)
	assert.Nil(t, k)
}

func TestGGUFRefused(t *testing.T) {
	instead := func(of, token string) []string {
		tokens := slices.Clone(ggufKeys(t)[2].Value.([]string))
		tokens[slices.Index(tokens, of)] = token
		return tokens
	}
	for name, c := range map[string]struct {
		key   string
		value any
		want  string
	}{
		"another kind":  {"tokenizer.ggml.model", "llama", `got "llama", want gpt2`},
		"other cuts":    {"tokenizer.ggml.pre", "qwen2", `got "qwen2", want joyai-llm`},
		"no cuts":       {"tokenizer.ggml.pre", nil, "got absent, want joyai-llm or deepseek-v3"},
		"a number":      {"tokenizer.ggml.pre", uint32(1), "got u32, want joyai-llm"},
		"few types":     {"tokenizer.ggml.token_type", []int32{1, 1}, "array of 2 i32, want an array of i32, 1003 of them"},
		"a type":        {"tokenizer.ggml.token_type", uint32(1), "got u32, want an array of i32, 1003 of them"},
		"other types":   {"tokenizer.ggml.token_type", make([]float32, 1003), "got array of 1003 f32, want an array of i32"},
		"no strings":    {"tokenizer.ggml.tokens", make([]int32, 1003), "array of 1003 i32, want an array of string"},
		"a token":       {"tokenizer.ggml.tokens", "a", "got string, want an array of string"},
		"no merges":     {"tokenizer.ggml.merges", nil, "got absent, want an array of string"},
		"a merge":       {"tokenizer.ggml.merges", "a b", "got string, want an array of string"},
		"a far token":   {"tokenizer.ggml.bos_token_id", uint32(1003), "got u32 1003, want one of 1003 tokens"},
		"a text for it": {"tokenizer.ggml.bos_token_id", "<s>", "got string 0, want one of 1003 tokens"},
		"a far end":     {"tokenizer.ggml.eos_token_id", int32(-1), "got i32 -1, want one of 1003 tokens"},
		"adds a number": {"tokenizer.ggml.add_bos_token", uint32(1), "got u32, want bool"},
		"no template":   {"tokenizer.chat_template", uint32(1), "got u32, want string"},
		"merges of one": {"tokenizer.ggml.merges", []string{"a"}, `tokenizer.ggml.merges[0]: got "a", want two tokens`},
		"unknown merges": {"tokenizer.ggml.merges", []string{"a a", "a [PAD7]"},
			`tokenizer.ggml.merges[1]: got "a [PAD7]", want tokens of tokenizer.ggml.tokens, and`},
		"an empty token": {"tokenizer.ggml.tokens", instead("<think>", ""), "tokenizer.ggml.tokens: got an empty text for token 1001"},
		"no bytes":       {"tokenizer.ggml.tokens", instead("a", "another"), "tokenizer.ggml.tokens: got no token of the byte 0x61"},
		"few tokens":     {"tokenizer.ggml.tokens", make([]string, 1003), "as token 0 and 1, want each once"},
	} {
		keys := ggufKeys(t)
		if name == "few tokens" {
			keys = slices.DeleteFunc(keys, func(k fakegguf.Key) bool { return k.Name == "tokenizer.ggml.token_type" })
		}
		keys = slices.DeleteFunc(keys, func(k fakegguf.Key) bool { return k.Name == c.key })
		if c.value != nil {
			keys = append(keys, fakegguf.Key{Name: c.key, Value: c.value})
		}
		_, err := openKeys(t, keys)
		assert.ErrorIs(t, err, ErrFormat, name)
		assert.ErrorContains(t, err, c.want, name)
	}
}

// The tokenizer of a recorded file reads and writes any text.
func TestRecordedGGUF(t *testing.T) {
	k, err := Open(filepath.Join(testkit.GGUF(t), "model-q8_0-mxfp4.gguf"))
	require.NoError(t, err)
	for _, s := range []string{"the tea is hot", "<｜begin▁of▁sentence｜>héé 123 日本\n"} {
		ids, err := k.Encode(t.Context(), s, 1000)
		require.NoError(t, err)
		d, text := k.Decoder(), ""
		for _, id := range ids {
			text += d.Add(id)
		}
		if text += d.End(); s[0] == '<' {
			assert.Equal(t, int32(0), ids[0])
			text = "<｜begin▁of▁sentence｜>" + text
		}
		assert.Equal(t, s, text)
		assert.Less(t, len(ids), len(s))
	}
}
