package attention_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestDecode(t *testing.T) { testkit.TestOp(t, "flashmla_sparse_decode") }

func TestDecodeDots(t *testing.T) { testkit.TestDots(t, "flashmla_sparse_decode") }

// analytic are steps whose result is known without computing an attention.
var analytic = []struct {
	name string
	make func(t *testing.T, rng *rand.Rand) step
	want func(t *testing.T, s step, out []uint16, lse []float32)
}{
	{"q = 0 averages", func(t *testing.T, rng *rand.Rand) step {
		return step{4, make([]uint16, 4*cache.D), set(t, 64, 1, normal(rng, 21*cache.D)), nil, []float32{inf(-1), 0, 2, inf(1)}}
	}, func(t *testing.T, s step, out []uint16, lse []float32) {
		rows := make([]uint16, 21*cache.D)
		require.NoError(t, cache.GatherSlotsRef(rows, s.win.Pool, s.win.Layout, s.win.Indices))
		for h, sink := range s.sink {
			if d := math.Abs(float64(lse[h]) - math.Log(21)); d > 1e-6 {
				t.Errorf("lse %g, want ln 21", lse[h])
			}
			for d := range cache.D {
				var sum float64
				for j := range 21 {
					sum += float64(numfmt.BF16Decode(rows[j*cache.D+d]))
				}
				want := sum / (21 + math.Exp(float64(sink)))
				if got := float64(numfmt.BF16Decode(out[h*cache.D+d])); math.Abs(got-want) > math.Abs(want)/128+1e-4 {
					t.Fatalf("head %d dim %d: got %g, want %g", h, d, got, want)
				}
			}
		}
	}},
	{"one key is copied", func(t *testing.T, rng *rand.Rand) step {
		return step{3, normal(rng, 3*cache.D), set(t, 2, 1, normal(rng, cache.D)), nil, nil}
	}, func(t *testing.T, s step, out []uint16, lse []float32) {
		row := make([]uint16, cache.D)
		require.NoError(t, cache.GatherSlotsRef(row, s.win.Pool, s.win.Layout, s.win.Indices))
		for h := range 3 {
			assert.True(t, slices.Equal(out[h*cache.D:][:cache.D], row), "head %d is not the row, bit for bit", h)
			var dot float64
			for d := range cache.D {
				dot += float64(numfmt.BF16Decode(row[d])) * float64(numfmt.BF16Decode(s.q[h*cache.D+d]))
			}
			want := dot * float64(attention.DefaultScale)
			assert.False(t, math.Abs(float64(lse[h])-want) > 1e-5*max(1, math.Abs(want)),
				"lse %g, want the score %g", lse[h], want)
		}
	}},
	{"nothing valid is zero", func(t *testing.T, rng *rand.Rand) step {
		s := step{8, normal(rng, 3*8*cache.D), set(t, 64, 3, normal(rng, 5*cache.D)), set(t, 2, 3, normal(rng, 7*cache.D)),
			[]float32{inf(-1), 0, inf(1), 5, -5, 1e38, -1e38, 1}}
		for i := range s.win.Indices {
			s.win.Indices[i] = []int32{-1, math.MinInt32, math.MaxInt32, 1 << 20}[i%4]
		}
		s.win.Lens[1] = 0
		s.comp.Lens = []int32{0, -3, 7}
		for i := range s.comp.Indices[14:] {
			s.comp.Indices[14+i] = -1
		}
		return s
	}, func(t *testing.T, s step, out []uint16, lse []float32) {
		for i, v := range out {
			if v != 0 {
				t.Fatalf("out[%d] is %#x, want 0", i, v)
			}
		}
		for i, v := range lse {
			if v != inf(1) {
				t.Fatalf("lse[%d] is %g, want +inf", i, v)
			}
		}
	}},
}

func TestDecodeAnalytic(t *testing.T) {
	dev := testkit.Device(t)
	for _, c := range analytic {
		s := c.make(t, rand.New(rand.NewPCG(testkit.Seed(t), 1)))
		for _, v := range variants(t, dev, s.heads) {
			for _, splits := range []int{0, 1, 3} {
				t.Run(subtest(c.name, v, splits), func(t *testing.T) {
					cfg := s.config(v)
					cfg.Splits = splits
					out, lse := s.decode(t, dev, cfg)
					c.want(t, s, out, lse)
				})
			}
		}
	}
}

// A sink that equals the lse halves the output; writing every index twice changes
// nothing but the lse, by ln 2; and both hold when the row is split.
func TestDecodeSinkAndDuplicates(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	s := step{8, normal(rng, 8*cache.D), set(t, 64, 1, normal(rng, 61*cache.D)), set(t, 2, 1, normal(rng, 69*cache.D)), nil}
	for _, v := range variants(t, dev, s.heads) {
		t.Run(v, func(t *testing.T) {
			out, lse := s.decode(t, dev, s.config(v))
			s.check(t, v, out, lse)
			half := s
			half.sink = lse
			got, _ := half.decode(t, dev, s.config(v))
			twice := s
			win, comp := *s.win, *s.comp
			for _, x := range []*attention.Slots{&win, &comp} {
				x.Indices, x.Width, x.Lens = append(slices.Clone(x.Indices), x.Indices...), 2*x.Width, []int32{2 * x.Lens[0]}
			}
			twice.win, twice.comp = &win, &comp
			spread, err := attention.DecodeSpreadRef(s.q, s.heads, s.win, s.comp, nil, attention.DefaultScale)
			require.NoError(t, err)
			same, lse2 := twice.decode(t, dev, s.config(v))
			for i := range out {
				o := float64(numfmt.BF16Decode(out[i]))
				if g := float64(numfmt.BF16Decode(got[i])); math.Abs(g-o/2) > math.Abs(o)/128+5e-5 {
					t.Fatalf("[%d]: %g with sink = lse, %g without", i, g, o)
				}
				if g := float64(numfmt.BF16Decode(same[i])); math.Abs(g-o) > math.Abs(o)/64+2e-4+float64(2*sides(v))/256*float64(spread[i]) {
					t.Fatalf("[%d]: %g with every index twice, %g once", i, g, o)
				}
			}
			for h := range lse {
				if d := float64(lse2[h]) - float64(lse[h]) - math.Ln2; math.Abs(d) > 1e-5 {
					t.Errorf("head %d: lse %g and %g, want ln 2 more", h, lse[h], lse2[h])
				}
			}
		})
	}
}

// Every number of heads gives the same rows: each head alone against all of them.
func TestDecodeHeads(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 3))
	heads := []int{1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128}
	if testing.Short() {
		heads = []int{1, 3, 8, 17, 65, 127}
	}
	win, comp := set(t, 64, 1, normal(rng, 19*cache.D)), set(t, 2, 1, normal(rng, 7*cache.D))
	for _, h := range heads {
		s := step{h, normal(rng, h*cache.D), win, comp, make([]float32, h)}
		for i := range s.sink {
			s.sink[i] = float32(i%5) - 2
		}
		for _, v := range variants(t, dev, h) {
			t.Run(subtest(h, v), func(t *testing.T) {
				out, lse := s.decode(t, dev, s.config(v))
				s.check(t, v, out, lse)
			})
		}
	}
}

// Any number of parts gives the result, and each number the same bits every time.
func TestDecodeSplits(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 4))
	s := step{5, normal(rng, 2*5*cache.D), set(t, 64, 2, normal(rng, 61*cache.D)), set(t, 2, 2, normal(rng, 40*cache.D)),
		[]float32{inf(-1), 0, 3, -3, 1}}
	s.win.Lens[0], s.comp.Lens[0] = 3, 2 // most parts of this token are empty
	for _, v := range variants(t, dev, s.heads) {
		for _, n := range []int{1, 2, 3, 7, 13, 14, 64, attention.MaxSplits} {
			t.Run(subtest(v, n), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Splits = n
				out, lse := s.decode(t, dev, cfg)
				s.check(t, v, out, lse)
				again, lseAgain := s.decode(t, dev, cfg)
				assert.True(t, slices.Equal(out, again) && slices.Equal(lse, lseAgain), "a second run gives other bits")
			})
		}
	}
}

// Workgroups with few heads, as few tokens get them, give the result too: where heads do not fill
// the last of them, where parts are empty, where scores outgrow the first ones, and where most
// subgroups have no part in the scores.
func TestDecodeFewHeads(t *testing.T) { decodeFewHeads(t) }

// The same, and with little shared memory, where rows lie so that lanes load them themselves, as
// far as lanes hold what lavapipe's do.
func TestDecodeByRows(t *testing.T) {
	dev := testkit.Device(t)
	if !dev.Caps().Features["coopmat.f16.f32"] {
		t.Skip("no matrices of f16")
	}
	attention.ByRows(func() {
		op := must[*attention.Decoder](t)(attention.NewDecoder(dev, attention.DecoderConfig{Heads: 21, WindowPage: 64,
			Variant: opkit.CM, OnDemand: true}))
		assert.Equal(t, dev.Adapter().Type == vk.TypeCPU, attention.DecodeRows(op) == 2)
		t.Run("FewHeads", decodeFewHeads)
		t.Run("LittleShared", TestDecodeLittleShared)
	})
}

func decodeFewHeads(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 6))
	const heads = 21
	s := step{heads, normal(rng, 2*heads*cache.D), set(t, 64, 2, normal(rng, 69*cache.D)), set(t, 2, 2, normal(rng, 61*cache.D)), make([]float32, heads)}
	for i := range s.q[:heads*cache.D] { // of the first token
		s.q[i] = numfmt.BF16Encode(numfmt.BF16Decode(s.q[i]) * float32(1+i/cache.D))
	}
	s.win.Lens[1], s.comp.Indices[3] = 2, -1
	for _, v := range variants(t, dev, s.heads) {
		for _, n := range []int{0, 1, 3, 14} {
			t.Run(subtest(v, n), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Splits, cfg.Workgroups = n, 1000
				out, lse := s.decode(t, dev, cfg)
				s.check(t, v, out, lse)
				attention.KSplit(2, func() { out, lse = s.decode(t, dev, cfg) })
				s.check(t, v, out, lse)
			})
		}
	}
}

// Workgroups of 4 rows at a time, as Intel's GPUs get them, give the result too.
func TestDecodeFewRows(t *testing.T) {
	dev := must[*vk.Device](t)(testkit.Device(t).Adapter().Open(vk.DeviceOptions{Profile: "xe"}))
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 7))
	for _, heads := range []int{8, 21} {
		win, comp := set(t, 64, 2, normal(rng, 69*cache.D)), set(t, 2, 2, normal(rng, 61*cache.D))
		s := step{heads, normal(rng, 2*heads*cache.D), win, comp, nil}
		s.win.Lens[1], s.comp.Indices[3] = 3, -1
		out, lse := s.decode(t, dev, s.config(opkit.Base))
		s.check(t, opkit.Base, out, lse)
	}
}

// A device with little shared memory has room for matrices with fewer rows at a time, and its
// output leaves in two parts where they are 8. Not every device has matrices for 8.
func TestDecodeLittleShared(t *testing.T) {
	a := *testkit.Device(t).Adapter()
	if testkit.LeftOut(opkit.CM) || attention.CanDecode(&a, opkit.CM, 64) != nil {
		t.Skip("no matrices of f16")
	}
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 8))
	const heads = 13
	win, comp := set(t, 64, 2, normal(rng, 69*cache.D)), set(t, 2, 2, normal(rng, 61*cache.D))
	s := step{heads, normal(rng, 2*heads*cache.D), win, comp, make([]float32, heads)}
	s.win.Lens[1], s.comp.Indices[3] = 3, -1
	cfg := s.config(opkit.CM)
	cfg.Splits = 1
	ran := 0
	for rows, shared := range map[int]int{8: 17 << 10, 16: 32 << 10} {
		a.Caps.SharedMemory = uint32(shared)
		dev := must[*vk.Device](t)(a.Open(vk.DeviceOptions{}))
		t.Cleanup(func() { assert.NoError(t, dev.Close()) })
		op, err := attention.NewDecoder(dev, cfg)
		if rows == 8 && err != nil {
			require.ErrorIs(t, err, vk.ErrMissingFeature)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, opkit.CM, op.Variant())
		out, lse := s.decode(t, dev, cfg)
		s.check(t, opkit.CM, out, lse)
		k := dev.Kernels()[0]
		assert.Equal(t, "attn_decode_cm", k.Name())
		assert.EqualValues(t, rows, k.Constants()[3], "rows at a time")
		ran++
	}
	assert.Positive(t, ran)
}

// A pool beyond the reach of a descriptor is read by address, and refused by base.
func TestDecodeHugePool(t *testing.T) {
	dev := testkit.Device(t)
	limit := dev.Caps().MaxStorageBufferRange
	if limit > dev.Caps().HeapBytes/4 || limit > 1<<33 {
		t.Skipf("a descriptor holds %d bytes of %d", limit, dev.Caps().HeapBytes)
	}
	if missing := dev.Caps().Missing([]string{"bufferDeviceAddress", "shaderInt64"}); len(missing) > 0 {
		t.Skipf("device lacks %v", missing)
	}
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 5))
	l := must[cache.Layout](t)(cache.NewLayout(64, 0))
	pages := int(limit/uint64(l.Stride)) + 2
	kv := must[cache.KVCache](t)(cache.NewKV(dev, cache.KVConfig{Pages: pages, Layout: l}))
	defer kv.Close()
	// Rows only in the last page, so that the host needs no copy of the rest.
	last := set(t, 64, 1, normal(rng, 50*cache.D))
	last.Pool = last.Pool[:l.Stride]
	require.NoError(t, kv.Pool.Rows(pages-1, pages).Upload(t.Context(), last.Pool))
	s := step{3, normal(rng, 3*cache.D), last, nil, nil}
	want, _, err := attention.DecodeRef(s.q, s.heads, last, nil, nil, attention.DefaultScale)
	require.NoError(t, err)
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	far := slices.Clone(last.Indices)
	for i := range far {
		far[i] += int32((pages - 1) * 64)
	}
	a := attention.DecodeArgs{
		Q: r.In(vectors.FromU16(s.q, 1, 3, cache.D), tensor.BF16), Out: r.Out(tensor.BF16, 1, 3, cache.D),
		Window: attention.SlotSet{Cache: kv, Indices: r.In(vectors.FromI32(far, 1, len(far)), tensor.I32), Lens: r.In(vectors.FromI32(last.Lens, 1), tensor.I32)},
	}
	cfg := attention.DecoderConfig{Heads: 3, WindowPage: 64, MaxBytes: kv.Pool.Bytes()}
	op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
	require.NotEqual(t, opkit.Base, op.Variant(),
		"variant %s for a pool of %d bytes", op.Variant(), kv.Pool.Bytes())
	a.Scratch = scratch(r, op.ScratchBytes(1, 50, 0))
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out}))
	cmp := verify.NewComparison(verify.ClassTolerance).CloseWeighted("out", got["out"], vectors.FromF32(want, 1, 3, cache.D), verify.DecodeOut,
		sides(op.Variant()), func() ([]float32, error) {
			return attention.DecodeSpreadRef(s.q, s.heads, last, nil, nil, attention.DefaultScale)
		})
	res := cmp.Result()
	assert.True(t, res.Pass, "%v %v", op.Variant(), res.Detail)

	cfg.Variant = opkit.Base
	_, err = attention.NewDecoder(dev, cfg)
	assert.ErrorIs(t, err, vk.ErrArgument, "base for a huge pool")
	cfg.MaxBytes = 0
	base := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
	refuses(t, dev, "Window.Cache.Pool", func(rec *vk.Recorder) error { return base.Record(rec, a) })
}

// scratch makes scratch memory full of NaN; none for 0 bytes.
func scratch(r *verify.Rig, n uint64) vk.View {
	if n == 0 {
		return vk.View{}
	}
	return r.Out(tensor.F32, int(n+3)/4).View()
}

func TestDecoderConfig(t *testing.T) {
	dev := testkit.Device(t)
	good := attention.DecoderConfig{Heads: 8, WindowPage: 64, CompressedPage: 2}
	for arg, change := range map[string]func(*attention.DecoderConfig){
		"Heads":          func(c *attention.DecoderConfig) { c.Heads = 129 },
		"WindowPage":     func(c *attention.DecoderConfig) { c.WindowPage = 0 },
		"CompressedPage": func(c *attention.DecoderConfig) { c.CompressedPage = -1 },
		"Scale":          func(c *attention.DecoderConfig) { c.Scale = float32(math.NaN()) },
		"Splits":         func(c *attention.DecoderConfig) { c.Splits = attention.MaxSplits + 1 },
		"Workgroups":     func(c *attention.DecoderConfig) { c.Workgroups = -1 },
		"variant":        func(c *attention.DecoderConfig) { c.Variant = "fastest" },
	} {
		for _, prefix := range []string{"", opkit.TwoPass} {
			cfg := good
			if prefix != "" {
				cfg.Variant = prefix + opkit.Base
			}
			change(&cfg)
			_, err := attention.NewDecoder(dev, cfg)
			var wrong *vk.ArgumentError
			require.ErrorAs(t, err, &wrong, prefix)
			assert.Equal(t, arg, wrong.Arg, prefix)
		}
	}
}

func TestDecodeArguments(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(1, 6))
	s := step{4, normal(rng, 2*4*cache.D), set(t, 64, 2, normal(rng, 64*cache.D)), set(t, 2, 2, normal(rng, 64*cache.D)), nil}
	for _, v := range []string{opkit.Base, opkit.TwoPass + opkit.Base} {
		cfg := s.config(v)
		cfg.Splits = 2
		op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
		r := verify.NewRig(t.Context(), dev)
		defer r.Close()
		good := attention.DecodeArgs{
			Q: r.In(vectors.FromU16(s.q, 2, 4, cache.D), tensor.BF16), Window: slotSet(r, s.win), Compressed: slotSet(r, s.comp),
			Sink: r.In(vectors.FromF32(make([]float32, 4), 4), tensor.F32),
			Out:  r.Out(tensor.BF16, 2, 4, cache.D), LSE: r.Out(tensor.F32, 2, 4), Scratch: scratch(r, op.ScratchBytes(2, 64, 64)),
		}
		require.NoError(t, r.Err())
		shape := func(x tensor.Tensor, s ...int) tensor.Tensor { x.Shape = s; return x }
		for _, c := range []struct {
			arg    string
			change func(*attention.DecodeArgs)
		}{
			{"Q", func(a *attention.DecodeArgs) { a.Q = shape(a.Q, 4, 2, cache.D) }},
			{"Out", func(a *attention.DecodeArgs) { a.Out = shape(a.Out, 1, 4, cache.D) }},
			{"LSE", func(a *attention.DecodeArgs) { a.LSE = shape(a.LSE, 4, 2) }},
			{"Window.Indices", func(a *attention.DecodeArgs) { a.Window.Indices = shape(a.Window.Indices, 1, 128) }},
			{"Window.Cache.Pool", func(a *attention.DecodeArgs) { a.Window.Cache = cache.KVCache{Layout: a.Window.Cache.Layout} }},
			{"Window.Cache.Pool", func(a *attention.DecodeArgs) { a.Window.Cache.Layout.Stride += 8 }},
			{"Stride", func(a *attention.DecodeArgs) { a.Window.Cache.Layout.Stride = 0 }},
			{"Stride", func(a *attention.DecodeArgs) { a.Window.Cache.Layout.Stride = 12 }},
			{"Window.Cache.Layout.Page", func(a *attention.DecodeArgs) { a.Window = a.Compressed }},
			{"Compressed.Lens", func(a *attention.DecodeArgs) { a.Compressed.Lens = shape(a.Compressed.Lens, 1) }},
			{"Scratch", func(a *attention.DecodeArgs) { a.Scratch = vk.View{} }},
			{"Scratch", func(a *attention.DecodeArgs) { a.Scratch.Size = 1000 }},
			{"Scratch", func(a *attention.DecodeArgs) { a.Scratch.Offset += 16 }},
		} {
			a := good
			c.change(&a)
			refuses(t, dev, c.arg, func(rec *vk.Recorder) error { return op.Record(rec, a) })
		}
		none := s.config(v)
		none.CompressedPage = 0
		windowOnly := must[*attention.Decoder](t)(attention.NewDecoder(dev, none))
		refuses(t, dev, "Compressed", func(rec *vk.Recorder) error { return windowOnly.Record(rec, good) })
	}
}
