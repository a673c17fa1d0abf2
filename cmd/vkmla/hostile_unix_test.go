//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/safetensors"
)

// Pipes without a writer are refused wherever a file is read, and not waited for.
func TestPipes(t *testing.T) {
	dir := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	pipe := at("pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	m := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(0)})
	writeArrays(t, at("in.npz"), vectors.Arrays{"L0.in": vectors.New(vectors.U16, 1, 192)})
	for _, name := range []string{"config.json", safetensors.SingleName, safetensors.IndexName, "manifest.json", "o.npz"} {
		folder := at("with-" + name)
		require.NoError(t, os.Mkdir(folder, 0o777))
		require.NoError(t, m.Write(folder, 1))
		manifest := `{"ops":[{"op":"indexer_topk","file":"o.npz","cases":[{"name":"c","arrays":{"a":{"shape":[1],"npy":"int32","role":"in"}}}]}]}`
		require.NoError(t, os.WriteFile(filepath.Join(folder, "manifest.json"), []byte(manifest), 0o666))
		_ = os.Remove(filepath.Join(folder, name))
		require.NoError(t, syscall.Mkfifo(filepath.Join(folder, name), 0o600))
	}
	for _, args := range [][]string{
		{"run", "--model", at("with-o.npz"), "--inputs", pipe, "--outputs", at("out.npz")},
		{"run", "--model", at("with-o.npz"), "--inputs", at("in.npz"), "--expect", pipe},
		{"run", "--model", at("with-config.json"), "--inputs", at("in.npz"), "--outputs", at("out.npz")},
		{"run", "--model", at("with-" + safetensors.SingleName), "--inputs", at("in.npz"), "--outputs", at("out.npz")},
		{"run", "--model", at("with-" + safetensors.IndexName), "--inputs", at("in.npz"), "--outputs", at("out.npz")},
		{"verify", "--vectors", at("with-manifest.json")},
		{"verify", "--vectors", at("with-o.npz"), "--op", "indexer_topk"},
		{"bench", "--compare", pipe},
	} {
		done := make(chan int, 1)
		var stdout, stderr bytes.Buffer
		go func() { done <- run(context.Background(), args, &stdout, &stderr) }()
		select {
		case code := <-done:
			assert.NotZero(t, code, args)
			assert.Contains(t, stdout.String()+stderr.String(), "not a regular file", args)
		case <-time.After(15 * time.Minute):
			t.Fatal("waits for a pipe", args)
		}
	}
}

// What a file says reaches the terminal without what a terminal would obey.
func TestEscapes(t *testing.T) {
	const evil = "\x1b]0;x\x07\u009b31m\r"
	quoted, err := json.Marshal(evil)
	require.NoError(t, err)
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		return path
	}
	e := string(quoted)
	in := filepath.Join(dir, "in.npz")
	writeArrays(t, in, vectors.Arrays{"L0.in": vectors.New(vectors.U16, 1, 8)})
	for name, text := range map[string]string{
		"type":   `{"model_type":` + e + `}`,
		"rates":  `{"model_type":"deepseek_v4","compress_rates":{` + e + `:1}}`,
		"wrong":  `{"compress_rates":{` + e + `:"x"}}`,
		"twice":  `{` + e + `:1,` + e + `:2}`,
		"broken": evil,
	} {
		put("config.json", text)
		code, _, stderr := command("run", "--model", dir, "--inputs", in, "--outputs", in+".out")
		assert.Equal(t, exitUsage, code, name)
		assert.NotEmpty(t, stderr, name)
		for _, c := range []string{"\x1b", "\u009b", "\r"} {
			assert.NotContains(t, stderr, c, name)
		}
	}
	var b bytes.Buffer
	n, err := plainWriter{&b}.Write([]byte("a\tb\n" + evil + "\u00a0ü\x7f"))
	require.NoError(t, err)
	assert.Equal(t, len("a\tb\n"+evil+"\u00a0ü\x7f"), n)
	assert.Equal(t, "a\tb\n"+`\x1b]0;x\x07\x9b31m\x0d`+"\u00a0ü"+`\x7f`, b.String())
}
