package layer

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must[T any](t testing.TB) func(T, error) T { return testkit.Must[T](t) }

// alloc makes a tensor that lives as long as the test.
func alloc(t testing.TB, dev *vk.Device, dt tensor.DType, shape ...int) tensor.Tensor {
	t.Helper()
	x := must[tensor.Tensor](t)(tensor.New(dev, "test", dt, shape...))
	t.Cleanup(func() { x.Close() })
	return x
}

// weights makes a model of layers of the ratios and puts it on the device.
func weights(t testing.TB, dev *vk.Device, o fakemodel.Options) (*model.Config, []*model.DeviceLayer) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, fakemodel.New(o).Write(dir, 1))
	c := must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{}))
	defer c.Close()
	layers := must[[]*model.DeviceLayer](t)(c.Upload(t.Context(), dev, nil))
	t.Cleanup(func() {
		for _, l := range layers {
			l.Close()
		}
	})
	return &c.Config, layers
}

// windowConfig is of layers that attend a window only, for one request's first tokens.
func windowConfig(t testing.TB, cfg *model.Config, tokens int) Config {
	t.Helper()
	c := Config{Spec: model.Window, Model: cfg, Tokens: tokens, MaxLen: tokens, Out: tensor.BF16, Scratch: &memory.Scratch{}}
	c.Caches.Window.Layout = must[cache.Layout](t)(cache.NewLayout(64, 0))
	return c
}

// place gives a kind and its layers their scratch.
func place(t testing.TB, dev *vk.Device, k *Kernels) {
	t.Helper()
	k.cfg.Scratch.Place(alloc(t, dev, tensor.U8, int(k.cfg.Scratch.Bytes())).Buffer)
}

// firstStep is the first step of one request, whose first tokens are valid. Its pages are those of
// their numbers.
func firstStep(t testing.TB, dev *vk.Device, tokens, valid int) StepArgs {
	t.Helper()
	positions, pages, isValid := make([]int32, tokens), make([]int32, tokens), make([]byte, tokens)
	for i := range tokens {
		if pages[i] = int32(i); i < valid {
			positions[i], isValid[i] = int32(i), 1
		}
	}
	table := testkit.Upload(t, dev, tensor.I32, pages, 1, tokens)
	return StepArgs{
		QueryStart: testkit.Upload(t, dev, tensor.I32, []int32{0, int32(valid)}, 2),
		SeqLens:    testkit.Upload(t, dev, tensor.I32, []int32{int32(valid)}, 1),
		TokenToReq: testkit.Upload(t, dev, tensor.I32, make([]int32, tokens), tokens),
		Positions:  testkit.Upload(t, dev, tensor.I32, positions, tokens),
		IsValid:    testkit.Upload(t, dev, tensor.U8, isValid, tokens),
		Tables:     Tables{Window: table, Compressed: table, State: table, IndexState: table, Keys: table},
	}
}

// cosSin is a table of the positions before n.
func cosSin(n int) (table []float32) {
	for i := range n * cache.RopeDim {
		angle := float64(i/cache.RopeDim) / math.Pow(160000, float64(i%32)/32)
		table = append(table, float32(math.Cos(angle-math.Pi/2*float64(i%64/32))))
	}
	return table
}
