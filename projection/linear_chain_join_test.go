package projection_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// joinRig is a joined chain of FP8 layers, and the two layers.
type joinRig struct {
	*verify.Rig
	tokens, heads int
	x, y          projection.LinearArgs
	n, n2         int
	first, second *projection.Linear
	chain         *projection.LinearChain
	state         tensor.Tensor
	names         map[string]tensor.Tensor
}

// newJoinRig makes one of two groups of perGroup heads, 2 or 3, for which both layers are
// divided alike on every device.
func newJoinRig(t *testing.T, dev *vk.Device, variant string, tokens, perGroup int) *joinRig {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), uint64(tokens)))
	r := &joinRig{Rig: verify.NewRig(t.Context(), dev), tokens: tokens, heads: 2 * perGroup, n: 528, n2: 1032, names: map[string]tensor.Tensor{}}
	const f = projection.FormatFP8
	a, b := randomHost(rng, f, tokens, 2, r.n, perGroup*cache.D), randomHost(rng, f, tokens, 1, r.n2, 2*r.n)
	one, two := linearConfig(a, variant), linearConfig(b, variant)
	one.MaxTokens, two.MaxTokens, one.Out, two.Out = tokens, tokens, tensor.BF16, tensor.BF16
	r.first, r.second = must[*projection.Linear](t)(projection.NewLinear(dev, one)), must[*projection.Linear](t)(projection.NewLinear(dev, two))
	r.chain = must[*projection.LinearChain](t)(projection.NewJoinedChain(r.first, r.second, tokens))
	assert.True(t, r.chain.Joined(), "it joins nothing")
	if dev.Adapter().Type != vk.TypeCPU || dev.Caps().Features["cooperativeMatrix"] { // see TestLinearChain
		projection.Together(r.chain)
	}
	r.state = must[tensor.Tensor](t)(r.chain.NewState(t.Context(), "test", tokens))
	r.x, r.y = linearRig(r.Rig, a, 0), linearRig(r.Rig, b, 0)
	return r
}

func (r *joinRig) close() {
	r.state.Close()
	r.Close()
}

// args lists what a launch of this name writes to.
func (r *joinRig) args(name string) projection.LinearChainArgs {
	out := func(what string, shape ...int) tensor.Tensor {
		r.names[what+name] = r.Out(tensor.BF16, shape...)
		return r.names[what+name]
	}
	a := projection.LinearChainArgs{First: r.x, Second: r.y, State: r.state}
	a.First.X, a.First.Out = out("x", r.tokens, r.heads, cache.D), out("z", r.tokens, 2*r.n)
	a.Second.X, a.Second.Out = a.First.Out, out("y", r.tokens, r.n2)
	return a
}

func (r *joinRig) angles(rng *rand.Rand) (positions, table tensor.Tensor) {
	p, angles := make([]int32, r.tokens), make([]float32, 3*64)
	for i := range p {
		p[i] = int32(5 * i) // the second one is beyond the table
	}
	for i := range 32 * 3 {
		s, c := math.Sincos(rng.Float64() * 7)
		angles[i/32*64+i%32], angles[i/32*64+32+i%32] = float32(c), float32(s)
	}
	return r.In(vectors.FromI32(p, r.tokens), tensor.I32), r.In(vectors.FromF32(angles, 3, 64), tensor.F32)
}

// Rows of attention whose parts are joined in the launch of two layers have the bits of three
// launches, whatever the number of parts; some parts are empty and hold anything.
func TestJoinedChain(t *testing.T) {
	dev := testkit.Device(t)
	for tokens, perGroup := range map[int]int{1: 3, 2: 2} {
		eachLinear(t, dev, func(t *testing.T, variant string) {
			if variant == opkit.Base {
				t.Skip("it needs device addresses")
			}
			r := newJoinRig(t, dev, variant, tokens, perGroup)
			defer r.close()
			rng := rand.New(rand.NewPCG(testkit.Seed(t), 4))
			const rows = 64
			layout := must[cache.Layout](t)(cache.NewLayout(rows, 0))
			pool, slots, list, lens := make([]byte, layout.Stride), make([]int64, rows), make([]int32, tokens*rows), make([]int32, tokens)
			for i := range slots {
				slots[i] = int64(i)
			}
			require.NoError(t, cache.InsertRef(pool, layout, testkit.Normal(rng, rows*cache.D), slots))
			for i := range list {
				list[i] = int32(i % rows)
			}
			for i := range lens {
				lens[i] = int32(rows - 23*i)
			}
			sink := make([]float32, r.heads)
			for h := range sink {
				sink[h] = float32(rng.NormFloat64())
			}
			sink[0], sink[1] = float32(math.Inf(-1)), float32(math.Inf(1))
			a := attention.DecodeArgs{Q: r.In(vectors.FromU16(testkit.Normal(rng, tokens*r.heads*cache.D), tokens, r.heads, cache.D), tensor.BF16),
				Window: attention.SlotSet{Cache: cache.KVCache{Pool: r.In(vectors.FromU8(pool, 1, layout.Stride), tensor.U8), Layout: layout},
					Indices: r.In(vectors.FromI32(list, tokens, rows), tensor.I32), Lens: r.In(vectors.FromI32(lens, tokens), tensor.I32)},
				Sink: r.In(vectors.FromF32(sink, r.heads), tensor.F32)}
			turn := attention.InverseRope{}
			turn.Positions, turn.Table = r.angles(rng)
			for _, parts := range []int{2, 5, 7, 9, 21, 40} {
				op := must[*attention.Decoder](t)(attention.NewDecoder(dev, attention.DecoderConfig{Heads: r.heads, WindowPage: rows, Splits: parts, Variant: opkit.DA}))
				x := a
				scratch := r.Out(tensor.U8, int(op.ScratchBytes(tokens, rows, 0)))
				x.Scratch = scratch.View()
				want, got := r.args(fmt.Sprint("want", parts)), r.args(fmt.Sprint("got", parts))
				r.Do(func(rec *vk.Recorder) error {
					x.Out = want.First.X
					if parts != 7 {
						x.InverseRope = turn
					}
					errs := []error{op.Record(rec, x), r.first.Record(rec, want.First), r.second.Record(rec, want.Second), rec.Fill(x.Scratch, ^uint32(0))}
					x.InverseRope = attention.InverseRope{}
					p, err := op.RecordParts(rec, x)
					got.Parts = projection.AttentionParts{Out: p.Out, State: p.State, Sink: x.Sink, Positions: turn.Positions, Table: turn.Table}
					if parts == 7 {
						got.Parts.Positions, got.Parts.Table = tensor.Tensor{}, tensor.Tensor{}
					}
					return errors.Join(append(errs, err, r.chain.Record(rec, got))...)
				})
			}
			results := must[verify.Arrays](t)(r.Results(r.names))
			for _, parts := range []int{2, 5, 7, 9, 21, 40} {
				for _, name := range []string{"x", "z", "y"} {
					assert.True(t, slices.Equal(results[fmt.Sprint(name, "want", parts)].Data, results[fmt.Sprint(name, "got", parts)].Data),
						"%d parts: %s differs", parts, name)
				}
			}
			words := testkit.Download[uint32](t, r.state)
			half := (len(words) - 64) / 2
			assert.Equal(t, ^uint32(0), words[0], "the counter is %#x after six launches", words[0])
			for i, w := range words[64 : 64+half] {
				if w != ^uint32(0) {
					t.Fatalf("word %d of the half whose turn it is: %#x", i, w)
				}
			}
		})
	}
}

// Numbers that are not numbers go through, those whose bits are all ones, too, by which
// layers know what is not there yet, and concern no other group of heads.
func TestJoinedChainNaN(t *testing.T) {
	dev := testkit.Device(t)
	eachLinear(t, dev, func(t *testing.T, variant string) {
		if variant == opkit.Base {
			t.Skip("it needs device addresses")
		}
		const parts = 9
		r := newJoinRig(t, dev, variant, 1, 3)
		defer r.close()
		rng := rand.New(rand.NewPCG(testkit.Seed(t), 5))
		acc, state := make([]byte, 4*parts*r.heads*cache.D), make([]float32, parts*r.heads*4)
		for i := range len(acc) / 4 {
			bits := math.Float32bits(float32(rng.NormFloat64()))
			if i/cache.D%r.heads == 0 {
				bits = ^uint32(0)
			}
			binary.LittleEndian.PutUint32(acc[4*i:], bits)
		}
		for i := range parts * r.heads {
			state[4*i], state[4*i+1] = float32(rng.NormFloat64()), 1
		}
		a := r.args("")
		a.Parts.Out = r.In(vectors.Array{Type: vectors.F32, Shape: []int{1, parts, r.heads, cache.D}, Data: acc}, tensor.F32)
		a.Parts.State = r.In(vectors.FromF32(state, 1, parts, r.heads, 4), tensor.F32)
		a.Parts.Positions, a.Parts.Table = r.angles(rng)
		r.Do(func(rec *vk.Recorder) error { return r.chain.Record(rec, a) })
		for name, list := range must[verify.Arrays](t)(r.Results(r.names)) {
			n := len(list.U16())
			first := map[string]int{"x": cache.D, "z": n / 2, "y": n}[name] // numbers that are none
			for i, v := range list.U16() {
				if nan := math.IsNaN(float64(numfmt.BF16Decode(v))); nan != (i < first) {
					t.Fatalf("%s: number %d is %#x", name, i, v)
				}
			}
		}
	})
}

// Where workgroups are so small that attn_merge joins parts in another order, a chain does not
// join any, and still is one.
func TestJoinedChainOfSmallWorkgroups(t *testing.T) {
	if testkit.Device(t).Caps().Missing(shaders.Requires("proj_linear_chain_da")) != nil {
		t.Skip("it needs device addresses")
	}
	for _, d := range knowncaps.Devices() {
		if d.Name != "Mali" && d.Name != "Adreno" {
			continue
		}
		dev, small := testkit.As(t, d), d.Caps.MaxWorkgroupInvocations < 512
		var l [2]*projection.Linear
		for i := range l {
			l[i] = must[*projection.Linear](t)(projection.NewLinear(dev, projection.LinearConfig{N: 1024, K: 1024, Weights: projection.FormatFP8F32, Out: tensor.BF16, MaxTokens: 1, Variant: opkit.DA}))
		}
		_, err := projection.NewJoinedChain(l[0], l[1], 1)
		assert.False(t, errors.Is(err, vk.ErrMissingFeature) != small || !small && err != nil,
			"%s, with parts of attention: %v", d.Name, err)
		_, err = projection.NewLinearChain(l[0], l[1], 1)
		assert.NoError(t, err, d.Name)
	}
}

func TestJoinedChainArguments(t *testing.T) {
	dev := testkit.Device(t)
	layer := func(groups, n, k int) *projection.Linear {
		o, err := projection.NewLinear(dev, projection.LinearConfig{N: n, K: k, Groups: groups, Weights: projection.FormatFP8F32, Out: tensor.BF16, MaxTokens: 1, Variant: opkit.DA})
		if errors.Is(err, vk.ErrMissingFeature) {
			t.Skip(err)
		}
		require.NoError(t, err)
		return o
	}
	_, err := projection.NewJoinedChain(layer(1, 1024, 1040), layer(1, 1024, 1024), 1)
	assert.ErrorIs(t, err, vk.ErrArgument, "no whole heads")
	for parts, want := range map[int]bool{1: false, 2: true, 40: true, 41: false} {
		assert.Equal(t, want, projection.JoinedParts(parts), "%d parts: %v", parts, !want)
	}
	first, second := layer(1, 1024, 1024), layer(1, 1024, 1024)
	o := must[*projection.LinearChain](t)(projection.NewJoinedChain(first, second, 1))
	plain := must[*projection.LinearChain](t)(projection.NewLinearChain(first, second, 1))
	assert.False(t, plain.Joined(), "chains that join nothing say that they do")
	zeros := func(dt tensor.DType, shape ...int) tensor.Tensor { return testkit.Zeros(t, dev, dt, shape...) }
	w := projection.LinearWeights{Data: zeros(tensor.U8, 1024, 1024), Scale: zeros(tensor.F32, 8, 8)}
	x, z, y := zeros(tensor.BF16, 1, 2, 512), zeros(tensor.BF16, 1, 1024), zeros(tensor.BF16, 1, 1024)
	state := must[tensor.Tensor](t)(o.NewState(t.Context(), "test", 1))
	defer state.Close()
	type chainArgs = projection.LinearChainArgs
	args := chainArgs{First: projection.LinearArgs{X: x, W: w, Out: z}, Second: projection.LinearArgs{X: z, W: w, Out: y}, State: state,
		Parts: projection.AttentionParts{Out: zeros(tensor.F32, 1, 3, 2, 512), State: zeros(tensor.F32, 1, 3, 2, 4), Sink: zeros(tensor.F32, 2),
			Positions: zeros(tensor.I32, 1), Table: zeros(tensor.F32, 5, 64)}}
	do(t, dev, func(rec *vk.Recorder) error { return o.Record(rec, args) })
	testkit.Changes[chainArgs]{
		"First.X": {func(a *chainArgs) { a.First.X.Shape = []int{1, 1024} }},
		"State":   {func(a *chainArgs) { a.State = state.Rows(0, state.Len()-1) }},
		"Parts.Out": {func(a *chainArgs) { a.Parts.Out = tensor.Tensor{} }, func(a *chainArgs) { a.Parts.Out.Shape = []int{1, 6, 1, 512} },
			func(a *chainArgs) { a.Parts.Out.Shape, a.Parts.State.Shape = []int{1, 1, 2, 512}, []int{1, 1, 2, 4} }},
		"Parts.State":     {func(a *chainArgs) { a.Parts.State.Shape = []int{1, 2, 2, 4} }},
		"Parts.Sink":      {func(a *chainArgs) { a.Parts.Sink.Shape = []int{1} }},
		"Parts.Positions": {func(a *chainArgs) { a.Parts.Positions = tensor.Tensor{} }},
		"Table":           {func(a *chainArgs) { a.Parts.Table = tensor.Tensor{} }},
	}.Refuse(t, dev, o.Record, args)
	refuses(t, dev, "Parts", func(rec *vk.Recorder) error { return plain.Record(rec, args) })
}
