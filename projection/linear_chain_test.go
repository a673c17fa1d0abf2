package projection_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Two layers in one launch give the bits of one after the other, launch after launch with
// the same state.
func TestLinearChain(t *testing.T) {
	dev := testkit.Device(t)
	for _, f := range slices.Concat(weightFormats, []projection.Format{projection.FormatQ8_0, projection.FormatQ4K}) {
		sizes := []struct{ groups, n, k, n2 int }{{2, 80, 160, 136}, {2, 528, 1056, 1032}}
		if f.BlockValues() > 0 {
			sizes[0].n, sizes[0].k = 128, 256
		}
		for i, c := range sizes {
			if i > 0 && f != projection.FormatFP8 {
				continue // more workgroups than any device has room for, and as FP8 layers of models are divided
			}
			everyLinear(t, dev, func(t *testing.T, variant string) {
				if variant == opkit.Base {
					t.Skip("it needs device addresses")
				}
				for tokens := 1; tokens <= projection.LinearChainTokens; tokens++ {
					for _, together := range []bool{false, true} {
						if together && dev.Adapter().Type == vk.TypeCPU && !dev.Caps().Features["cooperativeMatrix"] {
							continue // Mesa's older CPU drivers end loops after 65535 rounds
						}
						if !together && testkit.LeftOut(variant) {
							continue
						}
						t.Run(fmt.Sprintf("%v/%+v/t%d/%v", f, c, tokens, together), func(t *testing.T) {
							linearChain(t, dev, f, c.groups, c.n, c.k, c.n2, tokens, variant, together)
						})
					}
				}
			})
		}
	}
}

// chainHost is randomHost, for GGUF's blocks, too.
func chainHost(rng *rand.Rand, f projection.Format, tokens, groups, n, k int) projection.LinearHost {
	if f.BlockValues() == 0 {
		return randomHost(rng, f, tokens, groups, n, k)
	}
	h, is := randomHost(rng, projection.FormatBF16, tokens, groups, n, k), f.Shapes(groups*n, k)
	h.Weights, h.Data, h.Scale, h.RowScale = f, make([]byte, is.Data.Bytes()), make([]byte, is.Scale.Bytes()), make([]float32, groups*n)
	for i := range h.Data {
		h.Data[i] = byte(rng.UintN(256))
	}
	for i := range h.Scale { // f16 of about 2^-10
		h.Scale[i] = byte(0x14 + rng.UintN(8))
	}
	for i := range h.RowScale {
		h.RowScale[i] = 1
	}
	return h
}

func linearChain(t *testing.T, dev *vk.Device, f projection.Format, groups, n, k, n2, tokens int, variant string, together bool) {
	rng := rand.New(rand.NewPCG(9, uint64(f)))
	a, b := chainHost(rng, f, tokens, groups, n, k), chainHost(rng, f, tokens, 1, n2, groups*n)
	one, two := linearConfig(a, variant), linearConfig(b, variant)
	one.MaxTokens, two.MaxTokens, one.Out = tokens, tokens, tensor.BF16
	if tokens > 1 {
		two.Out = tensor.BF16
	}
	first, second := must[*projection.Linear](t)(projection.NewLinear(dev, one)), must[*projection.Linear](t)(projection.NewLinear(dev, two))
	chain := must[*projection.LinearChain](t)(projection.NewLinearChain(first, second, tokens))
	if together {
		projection.Together(chain)
	}
	state := must[tensor.Tensor](t)(chain.NewState(t.Context(), "test", projection.LinearChainTokens)) // more than it needs
	defer state.Close()

	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	x, y := linearRig(r, a, 0), linearRig(r, b, 0)
	names := map[string]tensor.Tensor{}
	out := func(name string, dt tensor.DType, shape ...int) tensor.Tensor {
		names[name] = r.Out(dt, shape...)
		return names[name]
	}
	x.Out = out("z", tensor.BF16, tokens, groups*n)
	y.X, y.Out, y.OutColumn = x.Out, out("y", two.Out, tokens, n2+16), 8
	r.Do(func(rec *vk.Recorder) error {
		errs := []error{first.Record(rec, x), second.Record(rec, y)}
		for i := range 3 { // in different memory each, and the last one with less to do
			u, v := x, y
			u.Out = out(fmt.Sprintf("z%d", i), tensor.BF16, tokens, groups*n)
			v.X, v.Out = u.Out, out(fmt.Sprintf("y%d", i), two.Out, tokens, n2+16)
			errs = append(errs, chain.Record(rec, projection.LinearChainArgs{First: u, Second: v, State: state}))
		}
		return errors.Join(errs...)
	})
	got := must[verify.Arrays](t)(r.Results(names))
	for i := range 3 {
		for _, name := range []string{"z", "y"} {
			assert.True(t, slices.Equal(got[name].Data, got[fmt.Sprint(name, i)].Data), "launch %d: %s differs", i, name)
		}
	}
	words := testkit.Download[uint32](t, state)
	require.Equal(t, ^uint32(0), words[0]|1<<31, "the counter is %#x after three launches", words[0])
	assert.Equal(t, uint32(0), words[0]>>31, "the counter is %#x after three launches", words[0])
	half := (len(words) - 64) / 2
	for i, w := range words[64+half : 64+2*half] {
		if w != ^uint32(0) {
			t.Fatalf("word %d of the half whose turn it is: %#x", i, w)
		}
	}
}

// Numbers that are not numbers go through, those whose bits are all ones, too, by which the
// second layer knows what is not there yet.
func TestLinearChainNaN(t *testing.T) {
	dev := testkit.Device(t)
	if missing := dev.Caps().Missing(shaders.Requires("proj_linear_chain_da")); missing != nil {
		t.Skip("the device lacks ", missing)
	}
	rng := rand.New(rand.NewPCG(10, 1))
	const n, k, n2 = 160, 160, 136
	a, b := randomHost(rng, projection.FormatBF16, 1, 1, n, k), randomHost(rng, projection.FormatBF16, 1, 1, n2, n)
	for i := range a.X {
		a.X[i] = 0xFF
	}
	one, two := linearConfig(a, opkit.DA), linearConfig(b, opkit.DA)
	one.MaxTokens, two.MaxTokens, one.Out, two.Out = 1, 1, tensor.BF16, tensor.BF16
	first, second := must[*projection.Linear](t)(projection.NewLinear(dev, one)), must[*projection.Linear](t)(projection.NewLinear(dev, two))
	chain := must[*projection.LinearChain](t)(projection.NewLinearChain(first, second, 1))
	if dev.Adapter().Type != vk.TypeCPU || dev.Caps().Features["cooperativeMatrix"] { // see TestLinearChain
		projection.Together(chain)
	}
	state := must[tensor.Tensor](t)(chain.NewState(t.Context(), "test", 1))
	defer state.Close()
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	x, y := linearRig(r, a, 0), linearRig(r, b, 0)
	x.Out, y.Out = r.Out(tensor.BF16, 1, n), r.Out(tensor.BF16, 1, n2)
	y.X = x.Out
	r.Do(func(rec *vk.Recorder) error {
		return chain.Record(rec, projection.LinearChainArgs{First: x, Second: y, State: state})
	})
	got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"z": x.Out, "y": y.Out}))
	for name, list := range got {
		for i, v := range list.U16() {
			if v&0x7FFF <= 0x7F80 {
				t.Fatalf("%s: number %d is %#x", name, i, v)
			}
		}
	}
	t.Logf("the first layer gives %#x", got["z"].U16()[0])
}

func TestLinearChainArguments(t *testing.T) {
	dev := testkit.Device(t)
	cfg := projection.LinearConfig{N: 64, K: 64, Weights: projection.FormatBF16, Out: tensor.BF16, MaxTokens: 2, Variant: opkit.DA}
	layer := func(change func(c *projection.LinearConfig)) *projection.Linear {
		c := cfg
		change(&c)
		o, err := projection.NewLinear(dev, c)
		if errors.Is(err, vk.ErrMissingFeature) {
			t.Skip(err)
		}
		require.NoError(t, err)
		return o
	}
	good := layer(func(*projection.LinearConfig) {})
	for name, c := range map[string]struct {
		first, second *projection.Linear
		tokens        int
		want          error
	}{
		"no tokens": {good, good, 0, vk.ErrArgument},
		"tokens":    {good, good, projection.LinearChainTokens + 1, vk.ErrArgument},
		"layer":     {good, layer(func(c *projection.LinearConfig) { c.MaxTokens = 1 }), 2, vk.ErrArgument},
		"f32":       {layer(func(c *projection.LinearConfig) { c.Out = tensor.F32 }), good, 1, vk.ErrArgument},
		"width":     {good, layer(func(c *projection.LinearConfig) { c.K = 128 }), 1, vk.ErrArgument},
		"format":    {good, layer(func(c *projection.LinearConfig) { c.Weights = projection.FormatNVFP4 }), 1, vk.ErrMissingFeature},
		"norm":      {good, layer(func(c *projection.LinearConfig) { c.Norm, c.NormColumns = tensor.BF16, 64 }), 1, vk.ErrMissingFeature},
		"base":      {layer(func(c *projection.LinearConfig) { c.Variant = opkit.Base }), good, 1, vk.ErrMissingFeature},
	} {
		o, err := projection.NewLinearChain(c.first, c.second, c.tokens)
		assert.ErrorIs(t, err, c.want, name)
		assert.Nil(t, o, name)
	}
	o := must[*projection.LinearChain](t)(projection.NewLinearChain(good, good, 2))
	w := projection.LinearWeights{Data: testkit.Zeros(t, dev, tensor.BF16, 64, 64)}
	zeros := func() tensor.Tensor { return testkit.Zeros(t, dev, tensor.BF16, 2, 64) }
	x, z, y := zeros(), zeros(), zeros()
	state := must[tensor.Tensor](t)(o.NewState(t.Context(), "test", 2))
	defer state.Close()
	type chainArgs = projection.LinearChainArgs
	args := chainArgs{First: projection.LinearArgs{X: x, W: w, Out: z}, Second: projection.LinearArgs{X: z, W: w, Out: y}, State: state}
	do(t, dev, func(rec *vk.Recorder) error { return o.Record(rec, args) })
	testkit.Changes[chainArgs]{
		"Second.X":  {func(a *chainArgs) { a.Second.X = x }},
		"First.Out": {func(a *chainArgs) { a.First.Out.Shape = []int{1, 128}; a.First.X = x.Rows(0, 1) }},
		"State":     {func(a *chainArgs) { a.State = tensor.Tensor{} }, func(a *chainArgs) { a.State = state.Rows(0, state.Len()-1) }},
		"X":         {func(a *chainArgs) { a.First.X = tensor.Tensor{} }},
	}.Refuse(t, dev, o.Record, args)
}

// A workgroup that never gives what others wait for ends the commands with an error, soon, each
// time that they run. From then on there is a launch for each layer, without waits, with the bits
// that there would have been.
func TestStarvedChain(t *testing.T) {
	adapter := testkit.Device(t).Adapter()
	if missing := adapter.Caps.Missing(shaders.Requires("proj_linear_chain_da")); missing != nil {
		t.Skip("the device lacks ", missing)
	}
	const looks = 3000 // older Mesa's CPU drivers end loops after 65535 rounds
	for name, c := range map[string]struct {
		joined   bool
		silent   int
		launches int
	}{
		"a product":        {false, 1, 2},
		"a joining":        {true, 5, 3},
		"behind a joining": {true, 4*4 + 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			dev := must[*vk.Device](t)(adapter.Open(vk.DeviceOptions{}))
			defer func() { assert.NoError(t, dev.Close()) }()
			r := newJoinRig(t, dev, opkit.DA, 1, 2)
			defer r.close()
			args := func(name string) projection.LinearChainArgs {
				a := r.args(name)
				if !c.joined {
					a.First.X = r.x.X
					delete(r.names, "x"+name)
				}
				return a
			}
			want, got := args("want"), args("got")
			if c.joined {
				rng := rand.New(rand.NewPCG(testkit.Seed(t), 6))
				acc, state := make([]float32, 3*r.heads*cache.D), make([]float32, 3*r.heads*4)
				for i := range acc {
					acc[i] = float32(rng.NormFloat64())
				}
				for i := range 3 * r.heads {
					state[4*i], state[4*i+1] = float32(rng.NormFloat64()), 1
				}
				want.Parts.Out = r.In(vectors.FromF32(acc, 1, 3, r.heads, cache.D), tensor.F32)
				want.Parts.State = r.In(vectors.FromF32(state, 1, 3, r.heads, 4), tensor.F32)
				got.Parts = want.Parts
				r.Do(func(rec *vk.Recorder) error { return r.chain.Record(rec, want) })
			}
			r.Do(func(rec *vk.Recorder) error { return r.first.Record(rec, want.First) })
			r.Do(func(rec *vk.Recorder) error { return r.second.Record(rec, want.Second) })
			require.NoError(t, r.Err())

			chain := must[*projection.LinearChain](t)(projection.StarvedChain(r.first, r.second, 1, c.joined, c.silent, looks))
			record := func() *vk.Commands {
				rec := must[*vk.Recorder](t)(dev.NewRecorder())
				require.NoError(t, chain.Record(rec, got))
				return must[*vk.Commands](t)(rec.End())
			}
			cmd := record()
			start := time.Now()
			for range 3 { // as the state that a launch leaves is as good as before
				err := cmd.Run(t.Context())
				require.ErrorIs(t, err, vk.ErrStarved)
				assert.ErrorContains(t, err, "gave up waiting for others, want all that have begun to go on")
			}
			assert.Less(t, time.Since(start), 15*time.Minute)
			assert.Equal(t, 1, door.Operations(cmd))
			require.NoError(t, cmd.Close())
			assert.True(t, dev.Starved())
			assert.NoError(t, dev.Err(), "the device is as good as before")
			cmd = record()
			for range 2 {
				require.NoError(t, cmd.Run(t.Context()))
			}
			assert.Equal(t, c.launches, door.Operations(cmd))
			require.NoError(t, cmd.Close())
			results := must[verify.Arrays](t)(r.Results(r.names))
			for _, name := range []string{"x", "z", "y"} {
				if c.joined || name != "x" {
					assert.True(t, slices.Equal(results[name+"want"].Data, results[name+"got"].Data), "%s differs", name)
				}
			}
			assert.Equal(t, ^uint32(0)>>1, testkit.Download[uint32](t, r.state)[0]&(^uint32(0)>>1), "the counter")
		})
	}
}
