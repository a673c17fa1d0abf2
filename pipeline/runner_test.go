package pipeline_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/fakemodel"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/internal/vectors"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// uploaded opens a checkpoint and puts it on the device.
func uploaded(t testing.TB, dev *vk.Device, dir string) (pipeline.Config, []*pipeline.DeviceLayer) {
	t.Helper()
	c := must[*pipeline.Checkpoint](t)(pipeline.OpenCheckpoint(dir, pipeline.CheckpointOptions{}))
	defer c.Close()
	layers := must[[]*pipeline.DeviceLayer](t)(c.Upload(t.Context(), dev, nil))
	t.Cleanup(func() {
		for _, l := range layers {
			l.Close()
		}
	})
	return c.Config, layers
}

// division runs a layer's tokens: so many in steps of at most chunk, the others one by
// one.
func division(t testing.TB, r *pipeline.Runner, layer, width, prefill int, hidden []float32) pipeline.Appended {
	t.Helper()
	all := must[pipeline.Appended](t)(r.Append(t.Context(), layer, hidden[:prefill*width]))
	for at := prefill * width; at < len(hidden); at += width {
		one := must[pipeline.Appended](t)(r.Append(t.Context(), layer, hidden[at:at+width]))
		all.Out, all.TopK = append(all.Out, one.Out...), append(all.TopK, one.TopK...)
	}
	return all
}

// distance is the relative error of a from b in the L2 norm.
func distance(a, b []float32) float64 {
	var sum, of float64
	for i := range b {
		d := float64(a[i]) - float64(b[i])
		sum, of = sum+d*d, of+float64(b[i])*float64(b[i])
	}
	return math.Sqrt(sum / of)
}

// agreement is the part of the wanted picks that the rows of got have, too.
func agreement(got, want []int32, width int) float64 {
	same, all := 0, 0
	for at := 0; at < len(want); at += width {
		for _, e := range want[at : at+width] {
			if e >= 0 {
				all++
				if slices.Contains(got[at:at+width], e) {
					same++
				}
			}
		}
	}
	return float64(same) / float64(max(all, 1))
}

// TestRunnerRecorded runs a checkpoint of transformers and compares every layer with
// what transformers gave for the same input, its caches rounded as ours are. The bound
// is twice what those roundings make of the noise of bf16, which flips some of them.
func TestRunnerRecorded(t *testing.T) {
	dir := filepath.Join(testkit.Root(t), "..", "shared", "golden", "tiny-v4-a")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no recorded layers beside the checkout:", err)
	}
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, dir)
	npz := must[*vectors.Archive](t)(vectors.OpenArchive(filepath.Join(dir, "layers.npz")))
	defer npz.Close()
	const tokens, prefill = 340, 300
	chunks := []int{1, 7, 64, 128, 300}
	if testing.Short() {
		chunks = []int{7, 128}
	}
	for _, chunk := range chunks {
		t.Run(fmt.Sprint(chunk), func(t *testing.T) {
			r := must[*pipeline.Runner](t)(pipeline.NewRunner(t.Context(), dev, cfg, layers, pipeline.RunnerOptions{MaxTokens: tokens, Chunk: chunk}))
			defer r.Close()
			for i := range layers {
				name := fmt.Sprintf("fp8kv.L%d.", i)
				in, want := must[vectors.Array](t)(npz.Array(name+"in")), must[vectors.Array](t)(npz.Array(name+"out"))
				got := division(t, r, i, cfg.Hidden, prefill, in.F32())
				err := distance(got.Out, want.F32())
				t.Logf("layer %d: error %.4f", i, err)
				if !(err < 0.025) {
					t.Errorf("layer %d: error %.4f", i, err)
				}
				if cfg.Ratios[i] != pipeline.RatioC4A {
					continue
				}
				picks := must[vectors.Array](t)(npz.Array(name + "topk"))
				w, width := picks.Dim(1), r.TopK()
				var padded []int32
				for v := range slices.Chunk(picks.I32(), w) {
					padded = append(padded, append(slices.Clone(v), filled(width-w, int32(-1))...)...)
				}
				a, b := agreement(got.TopK, padded, width), agreement(padded, got.TopK, width)
				t.Logf("layer %d: %.4f of the picks are there, %.4f are right", i, a, b)
				if min(a, b) < 0.97 {
					t.Errorf("layer %d: %.4f of the picks are there, %.4f are right", i, a, b)
				}
			}
		})
	}
}

// TestRunnerDivisions demands that the division of tokens into steps does not matter,
// and that weights in any format give what the same weights give as bf16. Those of FP8
// with UE8M0 scales are the same numbers in bf16, the others are rounded to it, by up to
// one part in 256.
func TestRunnerDivisions(t *testing.T) {
	dev := testkit.Device(t)
	storages := []fakemodel.Storage{fakemodel.FP8, fakemodel.FP8F32, fakemodel.NVFP4}
	const tokens, prefill = 140, 134
	c := fakemodel.Config(pipeline.RatioWindow, pipeline.RatioC4A, pipeline.RatioC128A)
	if testing.Short() {
		storages = storages[:1]
	}
	rng := rand.New(rand.NewPCG(1, 2))
	hidden := make([]float32, tokens*c.Hidden)
	for i := range hidden {
		hidden[i] = float32(rng.NormFloat64())
	}
	run := func(t *testing.T, m *fakemodel.Model, chunk int) (all []pipeline.Appended) {
		cfg, layers := uploaded(t, dev, written(t, m))
		r := must[*pipeline.Runner](t)(pipeline.NewRunner(t.Context(), dev, cfg, layers,
			pipeline.RunnerOptions{MaxTokens: tokens, Chunk: chunk, Keys: cache.IndexKeyMXFP4}))
		defer r.Close()
		for i, l := range layers {
			got := division(t, r, i, cfg.Hidden, prefill, hidden)
			picks := 0
			if l.Ratio == pipeline.RatioC4A {
				picks = tokens * r.TopK()
			}
			if r.Len(i) != tokens || len(got.Out) != len(hidden) || len(got.TopK) != picks {
				t.Errorf("layer %d: %d tokens, %d values, %d picks", i, r.Len(i), len(got.Out), len(got.TopK))
			}
			all = append(all, got)
		}
		return all
	}
	for _, s := range storages {
		t.Run(string(s), func(t *testing.T) {
			c := c
			if s != fakemodel.FP8 {
				c.TopK = 64 // all entries: near the last pick, rounding decides
			}
			m := fake(t, fakemodel.Options{Config: c, Storage: s})
			want := run(t, asBF16(t, m, c), tokens)
			for _, chunk := range []int{tokens, 33} {
				for i, got := range run(t, m, chunk) {
					err := distance(got.Out, want[i].Out)
					if t.Logf("steps of %d, layer %d: %.4f", chunk, i, err); !(err < 0.025) {
						t.Errorf("steps of %d, layer %d: %.4f from bf16 weights in one step", chunk, i, err)
					}
				}
			}
		})
	}
}

// asBF16 is a model with the weights of another as bf16.
func asBF16(t testing.TB, m *fakemodel.Model, c pipeline.Config) *fakemodel.Model {
	t.Helper()
	p := fake(t, fakemodel.Options{Config: c})
	for _, x := range p.Tensors {
		values := m.Values[x.Name]
		if len(values) == 0 {
			t.Fatalf("no values of %s", x.Name)
		}
		x.Data = nil
		for _, v := range values {
			if x.DType == safetensors.F32 {
				x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v))
			} else {
				x.Data = binary.LittleEndian.AppendUint16(x.Data, numfmt.BF16Encode(v))
			}
		}
	}
	return p
}

// TestRunnerFewIndexHeads demands that three heads of an indexer, for which there is no
// linear layer of just that size, pick what eight do of which five weigh nothing.
func TestRunnerFewIndexHeads(t *testing.T) {
	dev := testkit.Device(t)
	const tokens, heads = 120, 3
	few := fakemodel.Config(pipeline.RatioC4A)
	few.IndexHeads = heads
	small, large := fake(t, fakemodel.Options{Config: few}), fake(t, fakemodel.Options{Config: fakemodel.Config(pipeline.RatioC4A)})
	for _, x := range large.Tensors {
		if y := small.Find(x.Name); len(x.Data) == len(y.Data) {
			x.Data = y.Data
		} else {
			clear(x.Data[copy(x.Data, y.Data):])
		}
	}
	rng := rand.New(rand.NewPCG(5, 6))
	hidden := make([]float32, tokens*few.Hidden)
	for i := range hidden {
		hidden[i] = float32(rng.NormFloat64())
	}
	var picks [][]int32
	for _, m := range []*fakemodel.Model{small, large} {
		cfg, layers := uploaded(t, dev, written(t, m))
		r := must[*pipeline.Runner](t)(pipeline.NewRunner(t.Context(), dev, cfg, layers, pipeline.RunnerOptions{MaxTokens: tokens, Chunk: 61}))
		defer r.Close()
		picks = append(picks, division(t, r, 0, cfg.Hidden, tokens-3, hidden).TopK)
	}
	if a := agreement(picks[0], picks[1], few.TopK); a < 0.99 {
		t.Errorf("%.4f of the picks agree", a)
	}
}

func TestRunnerErrors(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(pipeline.RatioC4A)})))
	ctx := t.Context()
	for name, o := range map[string]pipeline.RunnerOptions{
		"MaxTokens": {}, "Chunk": {MaxTokens: 4, Chunk: -1}, "Format": {MaxTokens: 4, Keys: 9}, "variant": {MaxTokens: 4, Variant: "x"},
	} {
		if r, err := pipeline.NewRunner(ctx, dev, cfg, layers, o); r != nil || !errors.Is(err, vk.ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := cfg
	other.ORank *= 2
	wrong := cfg
	wrong.Heads = 0
	o := pipeline.RunnerOptions{MaxTokens: 5, Chunk: 3}
	if _, err := pipeline.NewRunner(ctx, dev, other, layers, o); !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
	if _, err := pipeline.NewRunner(ctx, dev, wrong, layers, o); !errors.Is(err, pipeline.ErrConfig) {
		t.Error(err)
	}
	if _, err := pipeline.NewRunner(ctx, dev, cfg, []*pipeline.DeviceLayer{nil}, o); !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
	r := must[*pipeline.Runner](t)(pipeline.NewRunner(ctx, dev, cfg, layers, o))
	defer r.Close()
	hidden := make([]float32, 6*cfg.Hidden)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		ctx    context.Context
		layer  int
		hidden []float32
		want   error
	}{
		{ctx, 1, nil, vk.ErrArgument}, {ctx, -1, nil, vk.ErrArgument}, {ctx, 0, hidden[:3], vk.ErrArgument},
		{ctx, 0, hidden, pipeline.ErrSequenceFull}, {cancelled, 0, hidden[:cfg.Hidden], context.Canceled},
	} {
		if got, err := r.Append(c.ctx, c.layer, c.hidden); !errors.Is(err, c.want) || got.Out != nil || r.Len(0) != 0 {
			t.Errorf("layer %d, %d values: %v, want %v", c.layer, len(c.hidden), err, c.want)
		}
	}
	if got, err := r.Append(ctx, 0, hidden[:5*cfg.Hidden]); err != nil || len(got.TopK) != 5*r.TopK() {
		t.Error(err)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	if _, err := r.Append(ctx, 0, nil); !errors.Is(err, vk.ErrClosed) {
		t.Error(err)
	}
}

// written writes a model and returns its folder.
func written(t testing.TB, m *fakemodel.Model) string {
	t.Helper()
	dir := t.TempDir()
	if err := m.Write(dir, 1); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The n-th allocation fails, for every n: there is no Runner, the error is the one of
// the allocation, and nothing is left allocated.
func TestRunnerOutOfMemory(t *testing.T) {
	full := errors.New("over budget")
	left := -1 // allocations until one fails; below 0: none does
	dev := must[*vk.Device](t)(testkit.Device(t).Adapter().Open(vk.DeviceOptions{MemoryHook: func(uint64) error {
		left--
		if left == -1 {
			return full
		}
		return nil
	}}))
	defer dev.Close()
	c := fakemodel.Config(pipeline.RatioC4A)
	c.IndexHeads = 3
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c, Storage: fakemodel.NVFP4})))
	for _, l := range layers {
		defer l.Close() // before the device
	}
	before := fmt.Sprint(dev.MemoryInUse())
	for n := 0; ; n++ {
		left = n
		r, err := pipeline.NewRunner(t.Context(), dev, cfg, layers, pipeline.RunnerOptions{MaxTokens: 9, Chunk: 4})
		if r != nil {
			if n < 10 || left < 0 {
				t.Errorf("after %d allocations, %d of them not made: a runner", n, left)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, full) {
			t.Errorf("allocation %d: %v, want %v", n, err, full)
		}
		if after := fmt.Sprint(dev.MemoryInUse()); after != before {
			t.Fatalf("allocation %d: memory in use %s, before %s", n, after, before)
		}
		if r != nil {
			return
		}
	}
}
