package pipeline_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// A device without timestamps says so when they are asked for. It runs steps of all kinds of
// layers as before, here with the coarsest alignment of bindings that Vulkan permits.
func TestEngineWithoutClock(t *testing.T) {
	testkit.WithoutMatrices(t)
	d := knowncaps.Device{Name: "no clock", Type: vk.TypeCPU, Caps: *testkit.Device(t).Caps()}
	d.Caps.TimestampPeriod, d.Caps.StorageAlignment = 0, 256
	dev, ctx := testkit.As(t, d), t.Context()
	c := fakemodel.Config(0, 4, 128)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 20, MaxSessions: 2})
	var missing *vk.MissingError
	if err := e.SetTiming(ctx, pipeline.TimingWhole); !errors.As(err, &missing) {
		t.Errorf("timing: %v, want a missing feature", err)
	}
	if err := e.SetTiming(ctx, pipeline.TimingOff); err != nil {
		t.Error(err)
	}
	chunks := []pipeline.Chunk{{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 5}, {Session: must[*pipeline.Session](t)(e.Open()), Tokens: 1}}
	for range 2 {
		st := must[*pipeline.Step](t)(e.Begin(ctx, chunks...))
		if err := errors.Join(st.Run(ctx), st.Commit()); err != nil {
			t.Error(err)
		}
	}
}

// TestStepTimes checks what each kind of timing measures, and the errors.
func TestStepTimes(t *testing.T) {
	dev, ctx := testkit.Device(t), t.Context()
	c := fakemodel.Config(0, 4)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 20})
	s := must[*pipeline.Session](t)(e.Open())
	if err := e.SetTiming(ctx, 3); !errors.Is(err, vk.ErrArgument) {
		t.Error(err)
	}
	for timing, want := range map[pipeline.Timing]int{pipeline.TimingOff: 0, pipeline.TimingWhole: 1, pipeline.TimingSections: 2} {
		if err := e.SetTiming(ctx, timing); err != nil {
			t.Fatal(err)
		}
		for range 3 { // measured, recorded anew, and again
			st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
			if err := st.Submit(); err != nil {
				t.Fatal(err)
			}
			if _, err := st.Times(); !errors.Is(err, vk.ErrBusy) {
				t.Errorf("times before the wait: %v", err)
			}
			if err := st.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if timing == pipeline.TimingSections {
				want = 1 // the lists of the step; then each operation of a layer
				for i := range layers {
					want += len(slices.Compact(slices.Concat(e.Levels(1, i)...)))
				}
			}
			list, err := st.Times()
			if err != nil || len(list) < want || want < 2 && len(list) != want {
				t.Errorf("timing %d: %d sections, %v", timing, len(list), err)
			}
			for _, x := range list {
				if x.NS <= 0 && x.Dispatches > 0 {
					t.Errorf("%+v", x)
				}
			}
			if timing == pipeline.TimingSections && !slices.ContainsFunc(list, func(x vk.Section) bool { return x.Name == "indexer.select" }) {
				t.Errorf("sections %v", list)
			}
			if err := st.Commit(); err != nil {
				t.Fatal(err)
			}
			if _, err := st.Times(); !errors.Is(err, vk.ErrClosed) {
				t.Errorf("times of a step that ended: %v", err)
			}
		}
	}
	if err := e.SetTiming(ctx, pipeline.TimingWhole); err != nil {
		t.Fatal(err)
	}
	st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
	for range 2 { // the second time they are recorded anew
		for i := range e.Layers() {
			if err := st.SubmitLayer(i); err != nil {
				t.Fatal(err)
			}
		}
		if err := st.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	list, err := st.Times()
	if err != nil || len(list) != 1+len(layers) {
		t.Errorf("layers one by one: %d sections, %v", len(list), err)
	}
	for _, x := range list {
		if x.NS <= 0 || x.Dispatches == 0 {
			t.Errorf("layers one by one: %+v", x)
		}
	}
	if err := errors.Join(st.Commit(), e.Close()); err != nil {
		t.Fatal(err)
	}
	if err := e.SetTiming(ctx, pipeline.TimingOff); !errors.Is(err, vk.ErrClosed) {
		t.Error(err)
	}
}
