package pipeline_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

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
	full := errors.New("over budget")
	most := uint64(1 << 62) // bytes of an allocation
	dev := must[*vk.Device](t)(testkit.Device(t).Adapter().Open(vk.DeviceOptions{MemoryHook: func(size uint64) error {
		if size > most {
			return full
		}
		return nil
	}}))
	defer dev.Close()
	cfg, layers := uploaded(t, dev, written(t, fake(t, fakemodel.Options{Config: fakemodel.Config(4)})))
	defer layers[0].Close() // before the device
	most = 4 << 20
	longest := min(cfg.MaxPositions, int(dev.Caps().MaxStorageBufferRange/(4*model.RopeRow)))
	const cache = 256 << 20
	refused := func(o pipeline.EngineOptions, arg string) {
		t.Helper()
		e, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, o)
		if e != nil || !errors.Is(err, vk.ErrArgument) || !strings.Contains(err.Error(), arg) {
			t.Errorf("%+v: %v", o, errors.Join(err, e.Close()))
		}
	}
	refused(pipeline.EngineOptions{MaxTokens: longest + 1, CacheBytes: cache}, "MaxTokens")
	refused(pipeline.EngineOptions{MaxTokens: longest, MaxSessions: 1 << 16, CacheBytes: cache}, "MaxSessions: got 65536, want at most ")
	refused(pipeline.EngineOptions{MaxTokens: longest, MaxStep: 1 << 20, CacheBytes: cache}, "MaxStep: got ")
	refused(pipeline.EngineOptions{MaxTokens: 1 << 16, Variant: "nonsense", CacheBytes: cache}, "variant: got \"nonsense\", want one of [cmb cm base da twopass-cmb ")
	refused(pipeline.EngineOptions{MaxTokens: 1 << 16, Ranks: 3, CacheBytes: cache}, "Ranks")
	refused(pipeline.EngineOptions{MaxTokens: 1, Ranks: -1}, "Ranks")
	refused(pipeline.EngineOptions{MaxTokens: 1, MaxSessions: -1}, "MaxSessions")
	e, err := pipeline.NewEngine(t.Context(), dev, cfg, layers, pipeline.EngineOptions{MaxTokens: 1 << 16, CacheBytes: cache})
	assert.Nil(t, e, "caches that do not fit")
	assert.ErrorIs(t, err, full, "caches that do not fit")
}
