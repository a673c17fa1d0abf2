package layer

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// windowStep runs a window layer for a request's first tokens, after changes to it.
func windowStep(t *testing.T, dev *vk.Device, cfg Config, w *model.DeviceLayer, hidden []float32, changes ...func(*Layer)) []float32 {
	t.Helper()
	n, width, layout := cfg.Tokens, cfg.Model.Hidden, cfg.Caches.Window.Layout
	cfg.Caches.Window.Pool = alloc(t, dev, tensor.U8, (n+63)/64, layout.Stride)
	cfg.Scratch = &memory.Scratch{}
	k := must[*Kernels](t)(NewKernels(dev, cfg))
	defer k.Close()
	l := must[*Layer](t)(k.NewLayer(t.Context(), w))
	defer l.Close()
	for _, change := range changes {
		change(l)
	}
	place(t, dev, k)
	step := firstStep(t, dev, n, n)
	a := Args{Caches: cfg.Caches, Out: alloc(t, dev, tensor.BF16, n, width),
		Hidden: testkit.Upload(t, dev, tensor.BF16, numfmt.BF16EncodeSlice(nil, hidden[:n*width]), n, width),
		CosSin: testkit.Upload(t, dev, tensor.F32, must[[]float32](t)(cfg.Model.Rope(0).Table(n, 1)), n, model.RopeRow)}
	testkit.Do(t, dev, func(rec *vk.Recorder) error {
		if err := rec.Fill(a.Out.View(), math.MaxUint32); err != nil {
			return err
		}
		if err := k.RecordStep(rec, step); err != nil {
			return err
		}
		return l.Record(rec, step, a)
	})
	return numfmt.BF16DecodeSlice(nil, testkit.Download[uint16](t, a.Out))
}

func randomHidden(n int) []float32 {
	rng := rand.New(rand.NewPCG(3, 4))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// TestJoined demands that one token's parts of rows, joined by the launch of wo_a and wo_b,
// make the bits of the same operations one after the other.
func TestJoined(t *testing.T) {
	dev := testkit.Device(t)
	c := fakemodel.Config(0)
	c.Hidden, c.ORank = 1024, 512 // both products are divided alike
	cfg, layers := weights(t, dev, fakemodel.Options{Config: c, Storage: fakemodel.FP8})
	hidden, kind := randomHidden(cfg.Hidden), windowConfig(t, cfg, 1)
	got := windowStep(t, dev, kind, layers[0], hidden, func(l *Layer) {
		can := l.chain != nil && l.kernels.mla.splits > 1
		assert.Equal(t, can, l.chain.Joined())
		if !can {
			t.Skip("rows are not split, or there are no device addresses")
		}
	})
	want := windowStep(t, dev, kind, layers[0], hidden, func(l *Layer) {
		l.chain = nil
		l.plan = choose(l.kernels.tune, l.traits())
	})
	assert.Equal(t, want, got)
}

// TestErrors demands typed errors for weights of another kind, and that closing again does nothing.
func TestErrors(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := weights(t, dev, fakemodel.Options{Config: fakemodel.Config(0, 128)})
	k := must[*Kernels](t)(NewKernels(dev, windowConfig(t, cfg, 2)))
	_, err := k.NewLayer(t.Context(), layers[1])
	assert.ErrorIs(t, err, vk.ErrArgument)
	l := must[*Layer](t)(k.NewLayer(t.Context(), layers[0]))
	require.NoError(t, errors.Join(l.Close(), l.Close(), k.Close(), k.Close()))
}

// TestCheck demands that tensors which no descriptor holds are known before anything is built.
func TestCheck(t *testing.T) {
	dev := testkit.Device(t)
	cfg := fakemodel.Config(0)
	c := windowConfig(t, &cfg, 1)
	fits := func() error {
		c.Scratch = &memory.Scratch{}
		return errors.Join(Check(dev, c), c.Scratch.Fits("test", dev.Caps()))
	}
	require.NoError(t, fits())
	limit := dev.Caps().MaxStorageBufferRange
	cfg.Window = int(limit / 4)
	require.NoError(t, fits())
	cfg.Window++
	assert.ErrorIs(t, fits(), vk.ErrArgument)
	cfg.Window = 128
	c.Caches.Window = cache.KVCache{}
	_, err := NewKernels(dev, c)
	assert.ErrorIs(t, err, vk.ErrArgument, "no layout")
}
