package layer

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// windowStep runs a window layer for a request's first tokens, after changes to it.
func windowStep(t *testing.T, dev *vk.Device, cfg KindConfig, w *model.DeviceLayer, hidden []float32, changes ...func(*Layer)) []float32 {
	t.Helper()
	n, width, layout := cfg.Tokens, cfg.Model.Hidden, cfg.Caches.Window.Layout
	cfg.Caches.Window.Pool = alloc(t, dev, tensor.U8, (n+63)/64, layout.Stride)
	cfg.Scratch = &memory.Scratch{}
	k := must[*Kind](t)(NewKind(dev, cfg))
	defer k.Close()
	l := must[*Layer](t)(k.NewLayer(t.Context(), w))
	defer l.Close()
	for _, change := range changes {
		change(l)
	}
	place(t, dev, k)
	step := firstStep(t, dev, n)
	a := Args{Caches: cfg.Caches, Out: alloc(t, dev, tensor.BF16, n, width),
		Hidden: put(t, dev, tensor.BF16, numfmt.BF16EncodeSlice(nil, hidden[:n*width]), n, width),
		CosSin: put(t, dev, tensor.F32, must[[]float32](t)(cfg.Model.Rope(0).Table(n, 1)), n, model.RopeRow)}
	if cfg.LSE {
		a.LSE = alloc(t, dev, tensor.F32, n, cfg.Model.Heads)
	}
	run(t, dev, func(rec *vk.Recorder) error {
		if err := rec.Fill(a.Out.View(), math.MaxUint32); err != nil {
			return err
		}
		if err := k.RecordStep(rec, step); err != nil {
			return err
		}
		return l.Record(rec, step, a)
	})
	return floats(get[uint16](t, a.Out))
}

func randomHidden(n int) []float32 {
	rng := rand.New(rand.NewPCG(3, 4))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// distance is the norm of the difference relative to that of want.
func distance(got, want []float32) float64 {
	var diff, all float64
	for i, w := range want {
		diff += float64(got[i]-w) * float64(got[i]-w)
		all += float64(w) * float64(w)
	}
	return math.Sqrt(diff / all)
}

// TestOutputPaths demands that an FP8 output path gives what the bf16 path gives, but for the
// rounding of E4M3, and the same bits with either layout of scales.
//
// E4M3 has three bits after the point: rounding to nearest changes a number by at most one part in
// 16, and the norm of o by no more. wo_a and wo_b are random and independent of these errors, so
// they lengthen both alike, and what comes out is wrong by at most 1/16 of its norm. Numbers below
// 2^-6 of their scale have fewer bits, but are small beside 448, the largest.
func TestOutputPaths(t *testing.T) {
	dev := testkit.Device(t)
	for _, storage := range []fakemodel.Storage{fakemodel.FP8, fakemodel.FP8F32} {
		cfg, layers := weights(t, dev, fakemodel.Options{Config: fakemodel.Config(0), Storage: storage})
		hidden := randomHidden(61 * cfg.Hidden)
		for _, n := range []int{1, 5, 61} {
			t.Run(fmt.Sprintf("%s/%d", storage, n), func(t *testing.T) {
				step := func(p projection.ActivationFormat) []float32 {
					c := windowConfig(t, cfg, n)
					c.Output = p
					return windowStep(t, dev, c, layers[0], hidden)
				}
				want, f32, packed := step(projection.ActivationBF16), step(projection.ActivationFP8), step(projection.ActivationFP8Packed)
				err := distance(f32, want)
				assert.Less(t, err, 1./16, "from the bf16 path")
				assert.Greater(t, err, 1e-3, "nothing was quantised")
				for i := range f32 {
					require.Equal(t, f32[i], packed[i], "output %d with f32 and with packed scales", i)
				}
			})
		}
	}
}

// TestOutputNeedsFP8 demands a typed error for weights that the path cannot take.
func TestOutputNeedsFP8(t *testing.T) {
	dev := testkit.Device(t)
	for _, storage := range []fakemodel.Storage{fakemodel.BF16, fakemodel.NVFP4} {
		cfg, layers := weights(t, dev, fakemodel.Options{Config: fakemodel.Config(0), Storage: storage})
		for _, p := range []projection.ActivationFormat{projection.ActivationFP8, projection.ActivationFP8Packed} {
			c := windowConfig(t, cfg, 1)
			c.Output = p
			k := must[*Kind](t)(NewKind(dev, c))
			defer k.Close()
			l, err := k.NewLayer(t.Context(), layers[0])
			assert.Nil(t, l)
			var arg *vk.ArgumentError
			if assert.ErrorAs(t, err, &arg, "%s weights, path %v", storage, p) {
				assert.Equal(t, "w.OA.Format", arg.Arg)
			}
		}
	}
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
		can := l.chain != nil && l.kind.mla.splits > 1
		assert.Equal(t, can, l.chain.Joined())
		if !can {
			t.Skip("rows are not split, or there are no device addresses")
		}
	})
	want := windowStep(t, dev, kind, layers[0], hidden, func(l *Layer) {
		l.chain = nil
		l.plan = choose(l.kind.tune, l.traits())
	})
	assert.Equal(t, want, got)
	kind.LSE = true
	assert.Equal(t, want, windowStep(t, dev, kind, layers[0], hidden), "with LSE")
}

// TestLSENotJoined demands that layers which write LSE leave the joining of parts to a launch that
// can, where others join them in front of wo_a, and do all else alike.
func TestLSENotJoined(t *testing.T) {
	dev := must[*vk.Device](t)(testkit.Device(t).Adapter().Open(vk.DeviceOptions{Profile: "hopper"}))
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	c := fakemodel.Config(0)
	c.Hidden, c.ORank = 1024, 512
	cfg, layers := weights(t, dev, fakemodel.Options{Config: c, Storage: fakemodel.FP8})
	for tokens := 1; tokens <= 2; tokens++ {
		var plans []schedule
		for _, lse := range []bool{false, true} {
			kind := windowConfig(t, cfg, tokens)
			kind.Caches.Window.Pool = alloc(t, dev, tensor.U8, 1, kind.Caches.Window.Layout.Stride)
			kind.LSE = lse
			k := must[*Kind](t)(NewKind(dev, kind))
			l := must[*Layer](t)(k.NewLayer(t.Context(), layers[0]))
			if l.oa.op.Variant() == opkit.Base {
				require.NoError(t, errors.Join(l.Close(), k.Close()))
				t.Skip("no chain without device addresses")
			}
			assert.Equal(t, !lse, l.chain.Joined(), "%d tokens", tokens)
			assert.Equal(t, tokens == 1 || !lse, l.chain != nil, "%d tokens: one launch", tokens)
			plans = append(plans, l.plan)
			require.NoError(t, errors.Join(l.Close(), k.Close()))
		}
		if tokens == 1 {
			assert.Equal(t, plans[0], plans[1])
		}
	}
}

// TestErrors demands typed errors for what cannot be made, and after closing.
func TestErrors(t *testing.T) {
	dev := testkit.Device(t)
	cfg, layers := weights(t, dev, fakemodel.Options{Config: fakemodel.Config(0, 128)})
	for name, change := range map[string]func(*KindConfig){
		"Ranks":   func(c *KindConfig) { c.Ranks = 3 },
		"Out":     func(c *KindConfig) { c.Out = tensor.I32 },
		"Tokens":  func(c *KindConfig) { c.Tokens = 0 },
		"Scratch": func(c *KindConfig) { c.Scratch = nil },
		"MaxLen":  func(c *KindConfig) { c.Spec, c.MaxLen = model.C128A, 0 },
	} {
		c := windowConfig(t, cfg, 2)
		change(&c)
		_, err := NewKind(dev, c)
		var arg *vk.ArgumentError
		if assert.ErrorAs(t, err, &arg, name) {
			assert.Equal(t, name, arg.Arg)
		}
		assert.ErrorIs(t, Check(dev, c), vk.ErrArgument, name)
	}
	_, err := NewKind(nil, windowConfig(t, cfg, 2))
	assert.ErrorIs(t, err, vk.ErrArgument)

	k := must[*Kind](t)(NewKind(dev, windowConfig(t, cfg, 2)))
	for name, w := range map[string]*model.DeviceLayer{"of another kind": layers[1], "missing": nil} {
		_, err := k.NewLayer(t.Context(), w)
		assert.ErrorIs(t, err, vk.ErrArgument, "weights %s", name)
	}
	l := must[*Layer](t)(k.NewLayer(t.Context(), layers[0]))
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.NoError(t, k.Close())
	require.NoError(t, k.Close())
	rec := must[*vk.Recorder](t)(dev.NewRecorder())
	defer rec.Close()
	assert.ErrorIs(t, l.Record(rec, StepArgs{}, Args{}), vk.ErrClosed)
	assert.ErrorIs(t, k.RecordStep(rec, StepArgs{}), vk.ErrClosed)
	_, err = k.NewLayer(t.Context(), layers[0])
	assert.ErrorIs(t, err, vk.ErrClosed)
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
	_, err := NewKind(dev, c)
	assert.ErrorIs(t, err, vk.ErrArgument, "no layout")
}
