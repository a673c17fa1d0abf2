package pipeline_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// A device without timestamps says so when they are asked for. It runs steps of all kinds of
// layers as before, divided by the host's clock, here with the coarsest alignment of bindings that
// Vulkan permits.
func TestEngineWithoutClock(t *testing.T) {
	testkit.WithoutMatrices(t)
	d := knowncaps.Device{Name: "no clock", Type: vk.TypeCPU, Caps: *testkit.Device(t).Caps()}
	d.Caps.TimestampPeriod, d.Caps.StorageAlignment = 0, 256
	dev, ctx := testkit.As(t, d), t.Context()
	c := fakemodel.Config(0, 4, 128)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 20, MaxSessions: 2})
	var missing *vk.MissingError
	err := e.SetTiming(ctx, pipeline.TimingWhole)
	require.ErrorAs(t, err, &missing, "timing")
	assert.NoError(t, e.SetTiming(ctx, pipeline.TimingOff))
	chunks := []pipeline.Chunk{{Session: must[*pipeline.Session](t)(e.Open()), Tokens: 5}, {Session: must[*pipeline.Session](t)(e.Open()), Tokens: 1}}
	for range 2 {
		st := must[*pipeline.Step](t)(e.Begin(ctx, chunks...))
		require.NoError(t, errors.Join(st.ReuseInputs(), st.Run(ctx), st.Commit()))
		assert.Positive(t, e.Stats().Longest)
	}
}

// TestStepTimes checks what each kind of timing measures, and the errors.
func TestStepTimes(t *testing.T) {
	dev, ctx := testkit.Device(t), t.Context()
	c := fakemodel.Config(0, 4)
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: c})))
	e := engine(t, dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 20})
	s := must[*pipeline.Session](t)(e.Open())
	assert.ErrorIs(t, e.SetTiming(ctx, 3), vk.ErrArgument)
	for timing, want := range map[pipeline.Timing]int{pipeline.TimingOff: 0, pipeline.TimingWhole: 1, pipeline.TimingSections: 2} {
		require.NoError(t, e.SetTiming(ctx, timing))
		for range 3 { // measured, recorded anew, and again
			st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
			require.NoError(t, errors.Join(st.ReuseInputs(), st.Submit()))
			_, err := st.Times()
			assert.ErrorIs(t, err, vk.ErrBusy, "times before the wait")
			require.NoError(t, st.Wait(ctx))
			if timing == pipeline.TimingSections {
				want = 1 // the lists of the step; then each operation of a layer
				for i := range layers {
					want += len(slices.Compact(slices.Concat(e.Levels(1, i)...)))
				}
			}
			list, err := st.Times()
			require.NoError(t, err, "timing %d: %d sections", timing, len(list))
			assert.False(t, len(list) < want || want < 2 && len(list) != want, "timing %d: %d sections", timing, len(list))
			for _, x := range list {
				assert.False(t, x.NS <= 0 && x.Dispatches > 0, "%+v", x)
			}
			assert.False(t, timing == pipeline.TimingSections &&
				!slices.ContainsFunc(list, func(x vk.Section) bool { return x.Name == "indexer.select" }),
				"sections %v", list)
			require.NoError(t, st.Commit())
			_, err = st.Times()
			assert.ErrorIs(t, err, vk.ErrClosed, "times of a step that ended")
		}
	}
	require.NoError(t, e.SetTiming(ctx, pipeline.TimingWhole))
	st := must[*pipeline.Step](t)(e.Begin(ctx, pipeline.Chunk{Session: s, Tokens: 1}))
	require.NoError(t, st.ReuseInputs())
	for range 2 { // the second time they are recorded anew
		for i := range e.Layers() {
			require.NoError(t, st.SubmitLayer(i))
		}
		require.NoError(t, st.Wait(ctx))
	}
	list, err := st.Times()
	assert.NoError(t, err, "layers one by one")
	assert.Len(t, list, 1+len(layers), "layers one by one")
	for _, x := range list {
		assert.False(t, x.NS <= 0 || x.Dispatches == 0, "layers one by one: %+v", x)
	}
	require.NoError(t, errors.Join(st.Commit(), e.Close()))
	assert.ErrorIs(t, e.SetTiming(ctx, pipeline.TimingOff), vk.ErrClosed)
}
