package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// TestEngineLimits demands that options with which steps would fail later are refused before any
// cache is allocated.
func TestEngineLimits(t *testing.T) {
	testkit.WithoutMatrices(t)
	most := uint64(1 << 62) // bytes of an allocation
	dev := device(t, vk.DeviceOptions{MemoryHook: func(size uint64) error {
		if size > most {
			return errFull
		}
		return nil
	}})
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4)})))
	most = 4 << 20
	longest := min(cfg.MaxPositions, int(dev.Caps().MaxStorageBufferRange/(4*model.RopeRow)))
	const cache = 256 << 20
	for want, o := range map[string]options{
		"MaxTokens: got 0":                                              {},
		"MaxTokens: got " + fmt.Sprint(longest+1):                       {MaxTokens: longest + 1, CacheBytes: cache},
		"MaxSessions: got -1":                                           {MaxTokens: 1, MaxSessions: -1},
		"MaxSessions: got 65536, want at most ":                         {MaxTokens: longest, MaxSessions: 1 << 16, CacheBytes: cache},
		"MaxStep: got -1":                                               {MaxTokens: 4, MaxStep: -1},
		"MaxStep: got 524288, want at most ":                            {MaxTokens: longest, MaxStep: 1 << 20, CacheBytes: cache},
		"Rewind: got -1":                                                {MaxTokens: 4, Rewind: -1},
		"Format: got format(9)":                                         {MaxTokens: 4, Keys: 9},
		"CacheBytes, MaxCacheBytes: got 1000":                           {MaxTokens: 4, MaxCacheBytes: 1000},
		"Variant: got twopass-base, want one that reads pages in place": {MaxTokens: 4, Invariant: true, Variant: "twopass-base"},
		"variant: got \"nonsense\", want one of [cmb cm dot base da twopass-cmb ":   {MaxTokens: 1 << 16, Variant: "nonsense", CacheBytes: cache},
		"Records: got records(7), want v4 or v41":                                   {MaxTokens: 4, Records: 7},
		"Records: got v41, want v4: entries of layer 0, of kind C4A, have no other": {MaxTokens: 4, Records: model.RecordsV41},
	} {
		e, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, o)
		assert.Nil(t, e, want)
		assert.ErrorIs(t, err, vk.ErrArgument, want)
		assert.ErrorContains(t, err, want)
		assert.True(t, strings.HasPrefix(err.Error(), "pipeline: new engine: "), "%v", err)
		assert.Equal(t, 1, strings.Count(err.Error(), "pipeline: "), "%v", err)
	}
	e, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 1 << 16, CacheBytes: cache})
	assert.Nil(t, e, "caches that do not fit")
	assert.ErrorIs(t, err, errFull, "caches that do not fit")
}

// TestEngineBuffers holds that an engine stays within the buffers that a device has: what a step
// would need beyond them is refused before anything is built, and caches end as a full pool does.
func TestEngineBuffers(t *testing.T) {
	testkit.WithoutMatrices(t)
	largest := uint64(0)
	a := *testkit.Device(t).Adapter()
	dev := must[*vk.Device](t)(a.Open(vk.DeviceOptions{MemoryHook: func(size uint64) error {
		largest = max(largest, size)
		return nil
	}}))
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4)})))
	const buffer, longest = 48 << 20, 48 << 20 / (4 * model.RopeRow)
	a.Caps.MaxBuffer, largest = buffer, 0
	most := buffer / (2 * cfg.Hidden) // rows of hidden states; other tensors of a step may be larger
	open := func(o pipeline.EngineOptions) (*pipeline.Engine, error) {
		return pipeline.NewEngine(t.Context(), dev, cfg, layers, o)
	}
	_, err := open(pipeline.EngineOptions{MaxTokens: 4096, MaxStep: most + 1})
	var wrong *vk.ArgumentError
	require.ErrorAs(t, err, &wrong)
	assert.Equal(t, "MaxStep", wrong.Arg)
	assert.Equal(t, 1, strings.Count(err.Error(), "pipeline: "), "%v", err)
	assert.Zero(t, largest, "allocated before options were refused")
	n := 0
	_, err = fmt.Sscanf(wrong.Want, "at most %d:", &n)
	require.NoError(t, err, wrong.Want)
	require.Positive(t, n)
	_, err = open(pipeline.EngineOptions{MaxTokens: 4096, MaxStep: n + 1})
	assert.ErrorContains(t, err, "a buffer of ")

	n /= 4 // partial sums share the buffer
	e, err := open(pipeline.EngineOptions{MaxTokens: longest, MaxSessions: 8, MaxStep: n, CacheBytes: 1 << 40})
	require.NoError(t, err)
	defer e.Close()
	require.NoError(t, e.Prepare(t.Context(), n))
	estimate := func(sessions int) (pipeline.EngineMemory, error) {
		o := pipeline.EngineOptions{MaxTokens: longest, MaxSessions: 8, MaxStep: n}
		return o.Estimate(t.Context(), dev, cfg, layers, slices.Repeat([]int{longest}, sessions)...)
	}
	_, err = estimate(8)
	assert.ErrorContains(t, err, "which a buffer holds")
	m, err := estimate(1)
	require.NoError(t, err)
	for range 8 {
		var s *pipeline.Session
		if s, err = e.Open(); err != nil {
			break
		}
		if err = s.Advance(t.Context(), longest); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, cache.ErrPoolFull, "the caches of all sessions do not fit their buffers")
	assert.LessOrEqual(t, largest, uint64(buffer))
	assert.Greater(t, largest, uint64(buffer/2))
	assert.LessOrEqual(t, m.Caches, e.Memory().Caches, "an estimate beyond what buffers hold")
	_, err = e.Open()
	assert.NoError(t, err, "the engine goes on")
}
