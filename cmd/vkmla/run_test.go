package main

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline"
)

// runFiles makes a model of two layers and inputs for them.
func runFiles(t *testing.T) (model, inputs string) {
	t.Helper()
	const tokens = 9
	model = t.TempDir()
	require.NoError(t, fakemodel.New(fakemodel.Options{Config: fakemodel.Config(0, 4)}).Write(model, 1))
	rng := rand.New(rand.NewPCG(3, 4))
	width := fakemodel.Config().Hidden
	hidden := make([]float32, tokens*width)
	for i := range hidden {
		hidden[i] = float32(rng.NormFloat64())
	}
	inputs = filepath.Join(model, "in.npz")
	writeArrays(t, inputs, vectors.Arrays{
		"L0.in": vectors.FromF32(hidden, tokens, width), "L1.in": vectors.FromBF16(hidden, tokens, width), "a.L1.in": vectors.FromF32(hidden, tokens, width),
		"b.L1.in":      vectors.FromF32(slices.Concat(hidden, hidden), 2, tokens, width),
		"narrow.L0.in": vectors.FromF32(hidden[:width], 2, width/2), "ints.L0.in": vectors.New(vectors.I32, 1, width),
	})
	return model, inputs
}

func writeArrays(t *testing.T, path string, arrays vectors.Arrays) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	w := vectors.NewArchiveWriter(f)
	for name, a := range arrays {
		require.NoError(t, w.Add(name, a))
	}
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
}

func readArrays(t *testing.T, path string) vectors.Arrays {
	t.Helper()
	in, err := vectors.OpenArchive(path)
	require.NoError(t, err)
	defer in.Close()
	all := vectors.Arrays{}
	for _, name := range in.Names() {
		all[name], err = in.Array(name)
		require.NoError(t, err)
	}
	return all
}

func TestRun(t *testing.T) {
	model, inputs := runFiles(t)
	runs := 0
	run := func(more string) vectors.Arrays {
		t.Helper()
		runs++
		outputs := filepath.Join(model, fmt.Sprintf("out%d.npz", runs))
		code, stdout, stderr := command(append([]string{"run", "--model", model, "--inputs", inputs, "--outputs", outputs}, strings.Fields(more)...)...)
		require.Equal(t, exitOK, code, "%q", more)
		require.Empty(t, stdout, "%q", more)
		require.Empty(t, stderr, "%q", more)
		return readArrays(t, outputs)
	}
	all := run("--chunk 4")
	shapes := ""
	for _, name := range []string{"L0.out", "L1.out", "L1.topk"} {
		shapes += all[name].String() + " "
	}
	assert.Len(t, all, 3)
	assert.Equal(t, "float32 [9, 192] float32 [9, 192] int32 [9, 16] ", shapes)
	// bf16 and f32 inputs are the same once rounded, a prefill that is too long is all of
	// it, and picks do not depend on how tokens are divided.
	again := run("--chunk 4 --prefix a. --prefill 100")
	require.Len(t, again, 2, "f32 inputs give another result than bf16 inputs")
	assert.True(t, slices.Equal(again["L1.out"].Data, all["L1.out"].Data),
		"f32 inputs give another result than bf16 inputs")
	both := run("--prefix b. --layers 1 --chunk 4") // the sequence twice
	got := both["L1.out"]
	require.Equal(t, "float32 [2, 9, 192]", got.String(), "two sequences: %v %v, or other outputs", got, both["L1.topk"])
	require.Equal(t, strings.Repeat(string(all["L1.out"].Data), 2), string(got.Data),
		"two sequences: %v %v, or other outputs", got, both["L1.topk"])
	assert.Equal(t, "int32 [2, 9, 16]", both["L1.topk"].String(),
		"two sequences: %v %v, or other outputs", got, both["L1.topk"])
	steps := run("--prefill 0 --layers 1 --keys mxfp4") // of fewer entries than are picked, all are
	require.Len(t, steps, 2, "single steps, or other picks")
	assert.True(t, slices.Equal(steps["L1.topk"].Data, all["L1.topk"].Data), "single steps, or other picks")
}

// The flags that are an engine's options get there.
func TestRunOptions(t *testing.T) {
	r := layerRun{f: runFlags{chunk: 7, variant: "da", quantise: true, invariant: true},
		keys: cache.IndexKeyMXFP4}
	want := pipeline.EngineOptions{MaxTokens: 9, MaxStep: 7, KeepTopK: true, Keys: cache.IndexKeyMXFP4,
		QuantiseActivations: true, Variant: "da", Invariant: true}
	got := r.options(9)
	assert.Equal(t, want, got)
}

// A run with --expect agrees with itself, and says what does not.
func TestRunExpect(t *testing.T) {
	model, inputs := runFiles(t)
	outputs := filepath.Join(model, "out.npz")
	run := func(more string) (code int, stdout, stderr string) {
		return command(append([]string{"run", "--model", model, "--inputs", inputs, "--layers", "0"}, strings.Fields(more)...)...)
	}
	code, _, stderr := run("--outputs " + outputs)
	require.Equal(t, exitOK, code, stderr)
	code, stdout, stderr := run("--expect " + outputs)
	assert.Equal(t, exitOK, code, "equal outputs")
	assert.Empty(t, stderr, "equal outputs")
	assert.Contains(t, stdout, "1 passed, 0 failed, 0 skipped, 0 missing", "equal outputs")
	assert.Contains(t, stdout, "vkmla "+describe.Running().Version)
	out := readArrays(t, outputs)["L0.out"]
	x := out.F32()
	x[len(x)-1] = 7
	writeArrays(t, outputs, vectors.Arrays{"L0.out": vectors.FromF32(x, out.Shape...)})
	code, stdout, stderr = run("-o json --expect " + outputs)
	assert.Equal(t, exitWrong, code, "a wrong number")
	assert.Empty(t, stderr, "a wrong number")
	assert.Contains(t, stdout, "out of token 8: calc_diff", "a wrong number")
	code, _, stderr = run("")
	assert.Equal(t, exitUsage, code, "neither outputs nor anything expected")
	assert.Contains(t, stderr, "expect", "neither outputs nor anything expected")
}

func TestExpectation(t *testing.T) {
	const tokens, width = 20, 4
	rng, hidden := rand.New(rand.NewPCG(5, 6)), make([]float32, tokens*width)
	for i := range hidden {
		hidden[i] = float32(rng.NormFloat64())
	}
	with := func(i int, v float32) vectors.Array {
		x := slices.Clone(hidden)
		x[i] = v
		return vectors.FromF32(x, tokens, width)
	}
	pick := func(rows, width int, other int32) vectors.Array {
		v := make([]int32, rows*width)
		for i := range v {
			if v[i] = int32(width - 1 - i%width); v[i] == 2 && i < width {
				v[i] = other
			}
		}
		return vectors.FromI32(v, rows, width)
	}
	got, topk := vectors.FromF32(hidden, tokens, width), pick(tokens, 3, 2)
	path := filepath.Join(t.TempDir(), "expected.npz")
	for _, c := range []struct {
		about, says string
		want        vectors.Arrays
		sum         verify.Summary
	}{
		{"equal", "out: calc_diff 0 ", vectors.Arrays{"out": got, "topk": topk}, verify.Summary{Pass: 2}},
		{"a batch of one, in doubles, without picks", "", vectors.Arrays{"out": {Type: vectors.F64, Shape: []int{1, tokens, width}, Data: f64Array(got.Float64s()).Data}}, verify.Summary{Pass: 1}},
		{"a slightly wrong number", "out of token 3: calc_diff", vectors.Arrays{"out": with(13, hidden[13]+0.4)}, verify.Summary{Fail: 1}},
		{"not a number", "want NaN", vectors.Arrays{"out": with(5, float32(math.NaN()))}, verify.Summary{Fail: 1}},
		{"other tokens", "want float32 [1, 4]", vectors.Arrays{"out": vectors.FromF32(hidden[:width], 1, width)}, verify.Summary{Fail: 1}},
		{"one other pick, and its token", "0.0167 of the picks differ, of 1 of 20 tokens", vectors.Arrays{"out": with(3, 100), "topk": pick(tokens, 3, 7)}, verify.Summary{Pass: 2}},
		{"another pick of the layer that it takes picks from", "0.0167 of the picks differ, of 1 of 20 tokens",
			vectors.Arrays{"out": with(3, 100), "L0.picks": pick(tokens, 3, 7)}, verify.Summary{Pass: 2}},
		{"picks of its own prevail", "0.0167 of the picks differ",
			vectors.Arrays{"out": with(3, 100), "topk": pick(tokens, 3, 7), "L0.picks": topk}, verify.Summary{Pass: 2}},
		{"picks as flags", "0 of the picks differ", vectors.Arrays{"out": got, "topk": {Type: vectors.U8,
			Shape: []int{tokens, 4}, Data: bytes.Repeat([]byte{1, 1, 1, 0}, tokens)}}, verify.Summary{Pass: 2}},
		{"many other picks", "0.5 of the picks differ, of 20 of 20", vectors.Arrays{"out": got, "topk": vectors.FromI32(slices.Repeat([]int32{-1, 0}, tokens), tokens, 2)}, verify.Summary{Fail: 2}},
		{"picks of other tokens", "topk: want is int32 [1, 3]", vectors.Arrays{"out": got, "topk": pick(1, 3, 2)}, verify.Summary{Pass: 1, Fail: 1}},
		{"nothing", "no array p.L1.out", nil, verify.Summary{Missing: 1}},
	} {
		arrays := vectors.Arrays{"L1.out": got}
		for name, a := range c.want {
			if !strings.HasPrefix(name, "L") {
				name = "L1." + name
			}
			arrays["p."+name] = a
		}
		writeArrays(t, path, arrays)
		var text strings.Builder
		e, err := openExpectation(runFlags{expect: path, prefix: "p.", output: "json"}, &text)
		require.NoError(t, err)
		require.NoError(t, e.layer("L1.", "L0.", "layer 1, C4A", got, topk), c.about)
		require.Equal(t, c.sum, e.sum, c.about)
		assert.Contains(t, text.String(), c.says, c.about)
		e.file.Close()
	}
}

func TestRunErrors(t *testing.T) {
	model, inputs := runFiles(t)
	files := "--model " + model + " --inputs " + inputs + " --outputs "
	out := filepath.Join(model, "out.npz")
	entries, err := os.ReadDir(model)
	require.NoError(t, err)
	before := len(entries)
	for _, c := range []struct{ args, stderr string }{
		{"", "required flag"},
		{files + out + " --prefill -1", "--prefill"},
		{files + out + " --chunk 0", "--chunk"},
		{files + out + " --layers 2", "Layers: got 2"},
		{files + out + " --layers 0 --prefix a.", `no array "a.L0.in"`},
		{files + out + " --prefix c.", "none of the arrays c.L0.in to c.L1.in; it has some with --prefix a., --prefix b., --prefix ints., --prefix narrow."},
		{files + out + " --prefix narrow.", "narrow.L0.in: got float32 [2, 96]"},
		{files + out + " --prefix ints.", "ints.L0.in: got int32 [1, 192]"},
		{files + out + " --keys soup", `keys: got "soup"`},
		{files + out + " --device nothing", "no Vulkan device"},
		{files + out + " --variant nothing", "nothing"},
		{files + out + " --expect " + inputs + " -o yaml", "--output"},
		{files + out + " --expect " + out, "expect: "},
		{files + filepath.Join(model, "no", "out.npz"), "outputs"},
		{"--model " + t.TempDir() + " --inputs " + inputs + " --outputs " + out, "config.json"},
		{"--model " + model + " --inputs " + filepath.Join(model, "config.json") + " --outputs " + out, "malformed"},
	} {
		code, stdout, stderr := command(append([]string{"run"}, strings.Fields(c.args)...)...)
		assert.True(t, code == exitUsage && stdout == "" && strings.Contains(stderr, c.stderr) &&
			strings.Count(stderr, "\n") == 1,
			"%s: exit code %d, %q, standard error %q, want one line with %q", c.args, code, stdout, stderr, c.stderr)
	}
	entries, err = os.ReadDir(model)
	assert.NoError(t, err, "files were left")
	assert.Len(t, entries, before, "files were left")
}
