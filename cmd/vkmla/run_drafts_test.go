package main

import (
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// normal are bf16 numbers of a normal distribution.
func normal(rng *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = numfmt.BF16Round(float32(rng.NormFloat64()))
	}
	return v
}

// off returns how far numbers are from what is wanted, relative to that.
func off(got, want []float32) float64 {
	var miss, all float64
	for i, w := range want {
		d := float64(got[i] - w)
		miss, all = miss+d*d, all+float64(w)*float64(w)
	}
	return math.Sqrt(miss / max(all, 1e-30))
}

// TestRunDrafts runs layers that draft, and compares them with the model's definition.
func TestRunDrafts(t *testing.T) {
	const tokens, blocks = 31, 3
	cfg := fakemodel.V41().WithDrafts(1)
	m := fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	rng := rand.New(rand.NewPCG(5, 6))
	main, in := normal(rng, tokens*cfg.Hidden), normal(rng, blocks*cfg.DraftBlock*cfg.Hidden)
	context, drafts := vectors.FromBF16(main, tokens, cfg.Hidden), vectors.FromBF16(in, blocks, cfg.DraftBlock, cfg.Hidden)
	inputs, outputs := filepath.Join(dir, "in.npz"), filepath.Join(dir, "out.npz")
	run := func(arrays vectors.Arrays, more string) (code int, stderr string) {
		writeArrays(t, inputs, arrays)
		code, _, stderr = command(strings.Fields("run --model " + dir + " --inputs " + inputs + " --outputs " + outputs + " " + more)...)
		return code, stderr
	}
	code, stderr := run(vectors.Arrays{"D1.main": context, "D1.in": drafts}, "--chunk 4")
	require.Equal(t, exitOK, code, stderr)
	assert.NotContains(t, stderr, "images")
	got := readArrays(t, outputs)
	require.Len(t, got, 1)
	out := got["D1.out"]
	require.Equal(t, "float32 [3, 5, 112]", out.String())
	s := formula.NewSequence(cfg, formula.Numerics{Records: model.RecordsV41}, m.Values)
	s.Context(10, main)
	var want []float32
	for i := range blocks {
		size := cfg.DraftBlock * cfg.Hidden
		for _, r := range s.Draft(10, tokens-blocks+i, in[i*size:(i+1)*size]) {
			want = append(want, r.Out...)
		}
	}
	assert.Less(t, off(out.F32(), want), 5e-3)

	flat, short := vectors.FromBF16(in, blocks*cfg.DraftBlock, cfg.Hidden), vectors.FromBF16(main[:2*cfg.Hidden], 2, cfg.Hidden)
	for want, arrays := range map[string]vectors.Arrays{
		"D.in: got uint16 [15, 112], want [blocks, 5, 112]":   {"D.main": context, "D.in": flat},
		"at most a block for each of the 2 tokens of D.main":  {"D.main": short, "D.in": drafts},
		"D.main: got uint16 [1, 31, 112], want [tokens, 112]": {"D.main": vectors.FromBF16(main, 1, tokens, cfg.Hidden), "D.in": drafts},
		"D.in needs D.main":                                          {"D.in": drafts},
		"D1.main needs D1.in":                                        {"D1.main": context, "D.main": context, "D.in": drafts},
		"L10.in: mtp.1 drafts: give D1.main and D1.in":               {"D.main": context, "D.in": drafts, "L10.in": context},
		"D2.in: the model has no such layer, its last one has D1.in": {"D.main": context, "D.in": drafts, "D2.main": context, "D2.in": drafts},
	} {
		code, stderr := run(arrays, "")
		assert.Equal(t, exitUsage, code)
		assert.Contains(t, stderr, want)
	}
}

// TestRunDraftsV4 runs the draft block of a DeepSeek-V4 that has one, beside its other layers, and
// plans for it.
func TestRunDraftsV4(t *testing.T) {
	const tokens, blocks = 21, 2
	cfg := fakemodel.Config(0, 4).WithDrafts(3)
	cfg.Window, cfg.DraftTargets = 16, []int{0, 1}
	m := fakemodel.New(fakemodel.Options{Config: cfg})
	m.Add("vision.patch_embed.weight", safetensors.BF16, 8, 8) // as DeepSeek-V4-Flash-Vision-Exp has
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	rng := rand.New(rand.NewPCG(7, 6))
	main, in := normal(rng, tokens*cfg.Hidden), normal(rng, blocks*cfg.DraftBlock*cfg.Hidden)
	context, drafts := vectors.FromBF16(main, tokens, cfg.Hidden), vectors.FromBF16(in, blocks, cfg.DraftBlock, cfg.Hidden)
	inputs, outputs := filepath.Join(dir, "in.npz"), filepath.Join(dir, "out.npz")
	writeArrays(t, inputs, vectors.Arrays{"L0.in": context, "D.main": context, "D.in": drafts, "D2.main": context, "D2.in": drafts})
	code, _, stderr := command("run", "--model", dir, "--inputs", inputs, "--outputs", outputs)
	require.Equal(t, exitOK, code, stderr)
	assert.Equal(t, 1, strings.Count(stderr, "the model's images are left out"), stderr)
	code, _, stderr = command("plan", "--model", dir, "--context", "64", "--sessions", "1", "--memory", "1GiB", "--device-like", "H100")
	require.Equal(t, exitOK, code, stderr)
	assert.Equal(t, 1, strings.Count(stderr, "the model's images are left out"), stderr)
	got := readArrays(t, outputs)
	require.Len(t, got, 3)
	for name, layer := range map[string]int{"D.out": 2, "D2.out": 4} {
		var want []float32
		for i := range blocks {
			size, n := cfg.DraftBlock*cfg.Hidden, tokens-blocks+1+i
			q := formula.NewSequence(cfg, formula.Numerics{Exact: true}, m.Values)
			q.Context(layer, main[:n*cfg.Hidden])
			for _, r := range q.Draft(layer, n-1, in[i*size:(i+1)*size]) {
				want = append(want, r.Out...)
			}
		}
		out := got[name]
		require.Equal(t, "float32 [2, 5, 192]", out.String())
		assert.Less(t, off(out.F32(), want), 0.05, "%s: rows are kept as E4M3, which makes 0.03", name)
	}
	for want, arrays := range map[string]vectors.Arrays{
		"D.in needs D.main":                            {"L0.in": context, "D.in": drafts},
		"D.main needs D.in":                            {"L0.in": context, "D.main": context},
		"L2.in: mtp.0 drafts: give D.main and D.in":    {"L2.in": context},
		"L4.in: mtp.2 drafts: give D2.main and D2.in":  {"L0.in": context, "L4.in": context},
		"L5.in: the model has no such layer, its last": {"L0.in": context, "L5.in": context},
	} {
		writeArrays(t, inputs, arrays)
		code, _, stderr = command("run", "--model", dir, "--inputs", inputs, "--outputs", outputs)
		assert.Equal(t, exitUsage, code, want)
		assert.Contains(t, stderr, want)
	}
	f := planFlags{model: dir, step: 1, ranks: 1, drafts: true}
	planned, layers, err := f.layers(io.Discard)
	require.NoError(t, err)
	assert.Len(t, layers, 5)
	assert.Equal(t, cfg.Layers, planned.Layers)
	f.drafts = false
	_, layers, err = f.layers(io.Discard)
	require.NoError(t, err)
	assert.Len(t, layers, 2)
}
