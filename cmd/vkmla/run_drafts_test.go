package main

import (
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
	"github.com/vkmla/vkmla/pipeline/model"
)

// TestRunDrafts runs layers that draft, and compares them with the model's definition.
func TestRunDrafts(t *testing.T) {
	const tokens, blocks = 31, 3
	cfg := fakemodel.V41().WithDrafts(1)
	m, err := fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	rng := rand.New(rand.NewPCG(5, 6))
	numbers := func(n int) []float32 {
		v := make([]float32, n*cfg.Hidden)
		for i := range v {
			v[i] = numfmt.BF16Round(float32(rng.NormFloat64()))
		}
		return v
	}
	main, in := numbers(tokens), numbers(blocks*cfg.DraftBlock)
	context, drafts := vectors.FromBF16(main, tokens, cfg.Hidden), vectors.FromBF16(in, blocks, cfg.DraftBlock, cfg.Hidden)
	inputs, outputs := filepath.Join(dir, "in.npz"), filepath.Join(dir, "out.npz")
	run := func(arrays vectors.Arrays, more string) (code int, stderr string) {
		writeArrays(t, inputs, arrays)
		code, _, stderr = command(strings.Fields("run --model " + dir + " --inputs " + inputs + " --outputs " + outputs + " " + more)...)
		return code, stderr
	}
	code, stderr := run(vectors.Arrays{"D1.main": context, "D1.in": drafts, "D.in": drafts}, "--chunk 4") // no D.main
	require.Equal(t, exitOK, code, stderr)
	got := readArrays(t, outputs)
	require.Len(t, got, 1)
	out := got["D1.out"]
	require.Equal(t, "float32 [3, 5, 112]", out.String())
	s := formula.NewSequence(cfg, formula.Numerics{Records: model.RecordsV41}, m.Values)
	s.Context(10, main)
	var miss, all float64
	for i := range blocks {
		size := cfg.DraftBlock * cfg.Hidden
		for k, r := range s.Draft(10, tokens-blocks+i, in[i*size:(i+1)*size]) {
			for c, w := range r.Out {
				d := float64(out.F32()[i*size+k*cfg.Hidden+c] - w)
				miss, all = miss+d*d, all+float64(w)*float64(w)
			}
		}
	}
	assert.Less(t, math.Sqrt(miss/all), 5e-3)

	flat, short := vectors.FromBF16(in, blocks*cfg.DraftBlock, cfg.Hidden), vectors.FromBF16(main[:2*cfg.Hidden], 2, cfg.Hidden)
	for want, arrays := range map[string]vectors.Arrays{
		"D.in: got uint16 [15, 112], want [blocks, 5, 112]":   {"D.main": context, "D.in": flat},
		"at most a block for each of the 2 tokens of D.main":  {"D.main": short, "D.in": drafts},
		"D.main: got uint16 [1, 31, 112], want [tokens, 112]": {"D.main": vectors.FromBF16(main, 1, tokens, cfg.Hidden), "D.in": drafts},
		"none of the arrays L0.in to L8.in":                   {"D.in": drafts},
	} {
		code, stderr := run(arrays, "")
		assert.Equal(t, exitUsage, code)
		assert.Contains(t, stderr, want)
	}
}

// TestDSparkOfV4 demands that run and plan refuse the draft block of a DeepSeek-V4 that has one.
func TestDSparkOfV4(t *testing.T) {
	cfg := fakemodel.Tiny(0, 0)
	cfg.Layers[1].Draft = true
	m, err := fakemodel.New(fakemodel.Options{Config: cfg})
	require.NoError(t, err)
	m.Config["dspark_block_size"] = 5
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	inputs, outputs := filepath.Join(dir, "in.npz"), filepath.Join(dir, "out.npz")
	x := vectors.FromBF16(make([]float32, 5*cfg.Hidden), 5, cfg.Hidden)
	const want = "this is the DSpark draft block of DeepSeek-V4"
	for _, c := range []struct {
		arrays vectors.Arrays
		more   string
	}{
		{vectors.Arrays{"L1.in": x}, ""}, {vectors.Arrays{"L0.in": x, "L1.in": x}, ""}, {vectors.Arrays{"D.main": x, "D.in": x}, ""},
		{vectors.Arrays{"a.D1.in": x}, "--prefix a."}, {vectors.Arrays{"L1.in": x}, "--layers 1"},
	} {
		writeArrays(t, inputs, c.arrays)
		code, _, stderr := command(strings.Fields("run --model " + dir + " --inputs " + inputs + " --outputs " + outputs + " " + c.more)...)
		assert.Equal(t, exitUsage, code)
		assert.Contains(t, stderr, want)
	}
	writeArrays(t, inputs, vectors.Arrays{"L0.in": x, "a.D.in": x})
	code, _, stderr := command("run", "--model", dir, "--inputs", inputs, "--outputs", outputs)
	assert.Equal(t, exitOK, code, stderr)
	f := planFlags{model: dir, step: 1, ranks: 1, drafts: true}
	_, _, err = f.layers()
	assert.ErrorContains(t, err, want)
	f.drafts = false
	_, planned, err := f.layers()
	require.NoError(t, err)
	assert.Len(t, planned, 1)
}
