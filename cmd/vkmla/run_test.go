package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/fakemodel"
	"github.com/vkmla/vkmla/internal/vectors"
	"github.com/vkmla/vkmla/pipeline"
)

// runFiles makes a model of two layers and inputs for them.
func runFiles(t *testing.T) (model, inputs string) {
	t.Helper()
	const tokens = 9
	model = t.TempDir()
	m, err := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(pipeline.RatioWindow, pipeline.RatioC4A)})
	if err == nil {
		err = m.Write(model, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	width := fakemodel.Config().Hidden
	hidden := make([]float32, tokens*width)
	for i := range hidden {
		hidden[i] = float32(rng.NormFloat64())
	}
	inputs = filepath.Join(model, "in.npz")
	writeArrays(t, inputs, vectors.Arrays{
		"L0.in": vectors.FromF32(hidden, tokens, width), "L1.in": vectors.FromBF16(hidden, tokens, width), "a.L1.in": vectors.FromF32(hidden, tokens, width),
		"narrow.L0.in": vectors.FromF32(hidden[:width], 2, width/2), "ints.L0.in": vectors.New(vectors.I32, 1, width),
	})
	return model, inputs
}

func writeArrays(t *testing.T, path string, arrays vectors.Arrays) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := vectors.NewArchiveWriter(f)
	for name, a := range arrays {
		if err := w.Add(name, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func readArrays(t *testing.T, path string) vectors.Arrays {
	t.Helper()
	in, err := vectors.OpenArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	all := vectors.Arrays{}
	for _, name := range in.Names() {
		if all[name], err = in.Array(name); err != nil {
			t.Fatal(err)
		}
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
		if code != exitOK || stdout != "" || stderr != "" {
			t.Fatalf("%q: exit code %d, %q, %q", more, code, stdout, stderr)
		}
		return readArrays(t, outputs)
	}
	all := run("--chunk 4")
	shapes := ""
	for _, name := range []string{"L0.out", "L1.out", "L1.topk"} {
		shapes += all[name].String() + " "
	}
	if len(all) != 3 || shapes != "float32 [9, 192] float32 [9, 192] int32 [9, 16] " {
		t.Errorf("%d arrays: %s", len(all), shapes)
	}
	// bf16 and f32 inputs are the same once rounded, a prefill that is too long is all of
	// it, and picks do not depend on how tokens are divided.
	again := run("--chunk 4 --prefix a. --prefill 100")
	if len(again) != 2 || !slices.Equal(again["L1.out"].Data, all["L1.out"].Data) {
		t.Error("f32 inputs give another result than bf16 inputs")
	}
	steps := run("--prefill 0 --layers 1")
	if len(steps) != 2 || !slices.Equal(steps["L1.topk"].Data, all["L1.topk"].Data) {
		t.Errorf("single steps: %d arrays, or other picks", len(steps))
	}
}

func TestRunErrors(t *testing.T) {
	model, inputs := runFiles(t)
	files := "--model " + model + " --inputs " + inputs + " --outputs "
	out := filepath.Join(model, "out.npz")
	entries, err := os.ReadDir(model)
	if err != nil {
		t.Fatal(err)
	}
	before := len(entries)
	for _, c := range []struct{ args, stderr string }{
		{"", "required flag"},
		{files + out + " --prefill -1", "--prefill"},
		{files + out + " --chunk 0", "--chunk"},
		{files + out + " --layers 2", "Layers: got 2"},
		{files + out + " --layers 0 --prefix a.", `no array "a.L0.in"`},
		{files + out + " --prefix b.", "none of the arrays"},
		{files + out + " --prefix narrow.", "narrow.L0.in: got float32 [2, 96]"},
		{files + out + " --prefix ints.", "ints.L0.in: got int32 [1, 192]"},
		{files + out + " --device nothing", "no Vulkan device"},
		{files + filepath.Join(model, "no", "out.npz"), "outputs"},
		{"--model " + t.TempDir() + " --inputs " + inputs + " --outputs " + out, "config.json"},
		{"--model " + model + " --inputs " + filepath.Join(model, "config.json") + " --outputs " + out, "malformed"},
	} {
		code, stdout, stderr := command(append([]string{"run"}, strings.Fields(c.args)...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, c.stderr) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q, standard error %q, want one line with %q", c.args, code, stdout, stderr, c.stderr)
		}
	}
	if entries, err = os.ReadDir(model); err != nil || len(entries) != before {
		t.Errorf("files were left: %v, %v", entries, err)
	}
}
