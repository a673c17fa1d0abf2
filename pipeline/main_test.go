package pipeline_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(saverVar); dir != "" { // TestSaveKilled started this process
		fmt.Fprintln(os.Stderr, saver(dir))
		os.Exit(1)
	}
	testkit.Main(m)
}

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

func filled[T any](n int, v T) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = v
	}
	return s
}

func bf16(values []float32) []byte {
	var data []byte
	for _, v := range values {
		b := numfmt.BF16Encode(v)
		data = append(data, byte(b), byte(b>>8))
	}
	return data
}

func floats(v []uint16) []float32 {
	f := make([]float32, len(v))
	for i := range v {
		f[i] = numfmt.BF16Decode(v[i])
	}
	return f
}

func fake(t testing.TB, o fakemodel.Options) *fakemodel.Model {
	t.Helper()
	if o.Config.Layers == nil {
		o.Config = fakemodel.Config(1, 4, 128)
	}
	return must[*fakemodel.Model](t)(fakemodel.New(o))
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
