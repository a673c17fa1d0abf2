package main

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/pipeline/model/random"
	"github.com/vkmla/vkmla/server/text"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// whole makes a small model with a layer of each kind and random weights.
func whole(t *testing.T) (dir string, vocabulary int) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, command(t.Context(), []string{"random", "--dir", dir, "--width", "tiny"}, quiet))
	c, err := weights.LoadConfig(dir)
	require.NoError(t, err)
	return dir, c.Vocab
}

// TestArguments refuses what would be ignored or wrap around.
func TestArguments(t *testing.T) {
	for _, bad := range [][]string{{"--model", "x", "serve"}, {"bench", "--model", "x", "1"}, {"random", "--dir", t.TempDir(), "tiny"},
		{"--model", "x", "--cache-mib", "17592186044417"}, {"--model", "x", "--max-tokens", "0"}, {"--model", "x", "--workers", "-1"},
		{"--model", "x", "--max-waiting", "0"}, {"--model", "x", "--drain", "-1s"}, {"--model", "x", "--prefix-gib", "3"},
		{"--model", "x", "--workers", "100000000"}, {"--model", "x", "--memory", "24GiB"},
		{"--model", "x", "--prefix", t.TempDir(), "--prefix-key", os.DevNull}, {"--model", "x", "--prefix", "s3://x"},
		{"--model", "x", "--listen", "localhost:0"}} {
		assert.ErrorContains(t, command(t.Context(), bad, quiet), "want", bad)
	}
	for _, bad := range [][]string{{"--listen", "x"}, {"--prefix", os.DevNull}, {"--listen", "localhost:0", "--admin-listen", "x"}} {
		err := command(t.Context(), append([]string{"--model", "x"}, bad...), quiet)
		assert.ErrorContains(t, err, "server: "+bad[len(bad)-2]+": ")
	}
}

// TestTokenizerFirst refuses a tokenizer before it reads weights.
func TestTokenizerFirst(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{}"), 0o666))
	assert.ErrorIs(t, command(t.Context(), []string{"--model", dir}, quiet), text.ErrFormat)
}

// TestOtherModels refuses a model whose attention the library computes and whose rest is not what
// is computed here, before its weights are read.
func TestOtherModels(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, random.Write(dir, random.V41Config(), 1))
	_, err := weights.Open(dir)
	require.ErrorIs(t, err, model.ErrConfig)
	assert.ErrorContains(t, err, "model_type: got deepseek_v41, want deepseek_v4")
	err = bench(t.Context(), []string{"--model", dir, "--device", os.Getenv("VKMLA_TEST_DEVICE")}, io.Discard, quiet)
	assert.ErrorIs(t, err, model.ErrConfig)
}

// TestPlan says what lies where, for memory that is only named.
func TestPlan(t *testing.T) {
	dir, _ := whole(t)
	args := func(memory string) []string {
		return []string{"--model", dir, "--device", os.Getenv("VKMLA_TEST_DEVICE"), "--memory", memory,
			"--max-tokens", "200", "--max-step", "16"}
	}
	for memory, want := range map[string]string{"24GiB": "everything on the device, of 24.0 GiB free",
		"1kB": "not even attention fits on the device, of 0.0 GiB free"} {
		var out bytes.Buffer
		require.NoError(t, plan(t.Context(), args(memory), &out))
		assert.Contains(t, out.String(), want)
	}
	usualPlan(t, args)
	for _, bad := range []string{"", "GiB", "-1GiB", "1e40TB", "5 apples", "NaN", "24"} {
		assert.ErrorContains(t, plan(t.Context(), args(bad), io.Discard), "want a size such as 24GiB", bad)
	}
}

// usualPlan demands that a plan without any Vulkan device says what one with a device says, but for
// the bytes of caches and steps.
func usualPlan(t *testing.T, args func(memory string) []string) {
	var here, out bytes.Buffer
	require.NoError(t, plan(t.Context(), args("24GiB"), &here))
	none := filepath.Join(t.TempDir(), "none.json")
	t.Setenv("VK_DRIVER_FILES", none)
	t.Setenv("VK_ICD_FILENAMES", none)
	t.Setenv("VKMLA_TEST_DEVICE", "")
	require.NoError(t, plan(t.Context(), args("24GiB"), &out))
	about, at, _ := strings.Cut(out.String(), "\n")
	assert.Equal(t, "no Vulkan device is here: for a GPU with the usual limits,", about)
	part := func(s string) string { s, _, _ = strings.Cut(s, "caches"); return s }
	assert.Equal(t, part(here.String()), part(at))
	assert.ErrorContains(t, plan(t.Context(), args("24GiB")[:2], io.Discard), "--memory 24GiB plans for a card that is not here")
	assert.ErrorIs(t, plan(t.Context(), append(args("24GiB"), "--device", "0"), io.Discard), vk.ErrNoDevice)
}

// TestKernels says once, at the start, that compiled kernels cannot be kept.
func TestKernels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	for kernels, want := range map[string]int{"": 0, t.TempDir(): 0, filepath.Join(t.TempDir(), "new"): 0, file: 1, filepath.Join(file, "x"): 1} {
		var log bytes.Buffer
		o := options{kernels: kernels}
		o.checkKernels(slog.New(slog.NewTextHandler(&log, nil)))
		assert.Equal(t, want, strings.Count(log.String(), "they cannot be kept in --kernels"), "%q: %s", kernels, &log)
	}
}

// TestBench times a small model: each batch has a row in both tables, with numbers above 0.
func TestBench(t *testing.T) {
	dir, _ := whole(t)
	var out bytes.Buffer
	args := []string{"--model", dir, "--device", os.Getenv("VKMLA_TEST_DEVICE"), "--batch", "1,3", "--prompt", "3", "--tokens", "4",
		"--max-step", "3", "--warm=false"}
	require.NoError(t, bench(t.Context(), args, &out, quiet))
	rows := 0
	for line := range strings.Lines(out.String()) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(cells[0], "| 1") || strings.HasPrefix(cells[0], "| 3") {
			rows++
			for _, cell := range cells[1:8] { // of the second table the rates of so small a model may round to 0
				assert.NotContains(t, cell, "-", line)
			}
			assert.NotContains(t, cells[1:3], "0.0", line)
		}
	}
	assert.Equal(t, 4, rows, out.String())
	for _, bad := range [][]string{{"--batch", "1"}, {"--model", dir, "--batch", "0"}, {"--model", dir, "--tokens", "2"},
		{"--model", dir, "--batch", "300"}, {"--url", "localhost:8080"}} {
		assert.ErrorContains(t, bench(t.Context(), bad, &out, quiet), "want", bad)
	}
}
