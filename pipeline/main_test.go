package pipeline_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

func fake(t testing.TB, o fakemodel.Options) *fakemodel.Model {
	t.Helper()
	if o.Config.Layers == nil {
		o.Config = fakemodel.Config(1, 4, 128)
	}
	return fakemodel.New(o)
}

// device opens the device of the tests once more. What is made on it is closed before it.
func device(t testing.TB, o vk.DeviceOptions) *vk.Device {
	t.Helper()
	dev := must[*vk.Device](t)(testkit.Device(t).Adapter().Open(o))
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	return dev
}

// errFull is the error of allocations that tests let fail.
var errFull = errors.New("over budget")

// failing lets an allocation fail after *left others; below 0: none.
func failing(left *int) func(uint64) error {
	return func(uint64) error {
		if *left--; *left == -1 {
			return errFull
		}
		return nil
	}
}

// written writes a model and returns its folder.
func written(t testing.TB, m *fakemodel.Model) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	return dir
}

// opened opens a checkpoint of a model and uploads its layers: those that o says, or all but those
// that draft.
func opened(t testing.TB, dev *vk.Device, m *fakemodel.Model, o model.CheckpointOptions) (*model.Checkpoint, []*model.DeviceLayer) {
	t.Helper()
	c := must[*model.Checkpoint](t)(model.Open(written(t, m), o))
	layers := must[[]*model.DeviceLayer](t)(c.Upload(t.Context(), dev, nil))
	t.Cleanup(func() { assert.NoError(t, errors.Join(model.CloseLayers(layers), c.Close())) })
	return c, layers
}

// uploaded puts the layers of a checkpoint on a device.
func uploaded(t testing.TB, dev *vk.Device, dir string) (model.Config, []*model.DeviceLayer) {
	t.Helper()
	c := must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{}))
	defer c.Close()
	layers := must[[]*model.DeviceLayer](t)(c.Upload(t.Context(), dev, nil))
	t.Cleanup(func() { assert.NoError(t, model.CloseLayers(layers)) })
	return c.Config, layers
}

// all lists the layers of a model, those that draft among them.
func all(c model.Config) (list []int) {
	for i := range c.Layers {
		list = append(list, i)
	}
	return list
}

type options = pipeline.EngineOptions

// engine makes an engine that the test closes at its end.
func engine(t testing.TB, dev *vk.Device, cfg model.Config, layers []*model.DeviceLayer, o options) *pipeline.Engine {
	t.Helper()
	e := must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, cfg, layers, o))
	t.Cleanup(func() { assert.NoError(t, e.Close()) })
	return e
}
