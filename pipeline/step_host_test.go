package pipeline_test

import (
	"errors"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// TestStepStaleOutput demands that nobody can read what another step or another layer left in host
// memory.
func TestStepStaleOutput(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(0)})))
	ctx, layers := t.Context(), append(layers, layers...) // twice the same
	in, out := filled(2*cfg.Hidden, float32(1)), make([]float32, 2*cfg.Hidden)
	for _, byLayer := range []bool{false, true} {
		e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 30, MaxSessions: 2, MaxStep: 8, LayerByLayer: byLayer})
		extend(t, must[*pipeline.Session](t)(e.Open()), len(layers), in)
		st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 2}))
		stale := func(when string, layer int) {
			t.Helper()
			if err := st.ReadOutput(layer, 0, out); !errors.Is(err, vk.ErrArgument) {
				t.Errorf("by layer %v: output of layer %d, %s: %v", byLayer, layer, when, err)
			}
		}
		if err := errors.Join(st.Input(0).Upload(ctx, make([]byte, st.Input(0).Bytes())), st.RunLayer(ctx, 0)); err != nil {
			t.Fatal(err)
		}
		if err := st.SetInput(1, 0, in); err != nil {
			t.Fatal(err)
		}
		stale("which did not run", 1)
		if err := errors.Join(st.RunLayer(ctx, 1), st.ReadOutput(1, 0, out)); err != nil {
			t.Fatal(err)
		}
		stale("which ran with inputs on the device", 0)
		if err := st.SetInput(0, 0, in); err != nil {
			t.Fatal(err)
		}
		stale("whose inputs were set after it ran", 0)
		if err := errors.Join(st.ReadOutput(1, 0, out), st.RunLayer(ctx, 0), st.ReadOutput(0, 0, out)); err != nil {
			t.Fatal(err)
		}
		if byLayer {
			if err := st.SetInput(1, 0, in); err != nil {
				t.Fatal(err)
			}
			stale("after another layer ran", 1)
		}
		if err := st.Commit(); err != nil {
			t.Error(err)
		}
	}
}
