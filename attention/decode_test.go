package attention_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

func TestDecode(t *testing.T) { testkit.TestOp(t, "flashmla_sparse_decode") }

func TestDecodeDots(t *testing.T) { testkit.TestDots(t, "flashmla_sparse_decode") }

// forms are steps whose work is divided in ways that cases of package verify do not ask for. The
// second token has few rows, some entries are masked, and there are sinks.
var forms = map[string]struct {
	heads             []int
	tokens, win, comp int // comp 0: no compressed set
	splits            []int
	workgroups        int // 1: as many heads in each as fit; 1000: few
	growth            int // heads from one growth of the first token's scores to the next; these outgrow the first ones
}{
	"heads": {[]int{1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128}, 1, 19, 7, []int{0}, 0, 0},
	// In all forms of joining; rows of the first token end with a tile, as those of V4 do.
	"parts":      {[]int{5}, 2, 401, 175, []int{1, 2, 3, 5, 8, 9, 14, 20, 21, 33, 64, attention.MaxSplits}, 0, 0},
	"few heads":  {[]int{21}, 2, 69, 61, []int{0, 1, 3, 14}, 1000, 1},
	"many heads": {[]int{39}, 2, 141, 61, []int{1, 2}, 1, 2},
	"huge":       {[]int{9}, 1, 40, 0, []int{0}, 1, 0}, // scores of some 2^28, where f32 has steps of 32
}

// TestDecodeForms holds each form against the reference; a second run gives the same bits.
func TestDecodeForms(t *testing.T) {
	for name := range forms {
		t.Run(name, func(t *testing.T) { decodeForm(t, name) })
	}
}

func decodeForm(t *testing.T, name string) {
	dev, c := testkit.Device(t), forms[name]
	for i, heads := range c.heads {
		if testing.Short() && i%3 > 0 {
			continue
		}
		s := newForm(t, heads, c.tokens, c.win, c.comp, cache.RecordV4, cache.RecordV4, c.growth)
		if name == "huge" {
			s.q, s.win = large(t, heads, 14000), set(t, 64, 1, large(t, c.win, 12000))
		}
		for _, v := range variants(t, dev, heads) {
			for _, splits := range c.splits {
				t.Run(subtest(heads, v, splits), func(t *testing.T) {
					cfg := s.config(v)
					cfg.Splits, cfg.Workgroups = splits, c.workgroups
					run := func(t *testing.T) {
						out, lse := s.decode(t, dev, cfg)
						s.check(t, v, out, lse)
						again, lseAgain := s.decode(t, dev, cfg)
						assert.True(t, slices.Equal(out, again) && slices.Equal(lse, lseAgain), "a second run gives other bits")
					}
					if c.workgroups == 1 {
						bothLayouts(t, cfg, run)
						return
					}
					if run(t); c.workgroups > 1 { // most subgroups have no part in the scores
						attention.KSplit(2, func() { run(t) })
					}
				})
			}
		}
	}
}

// newForm makes a step of random numbers.
func newForm(t *testing.T, heads, tokens, win, comp int, winRecord, compRecord cache.Record, growth int) step {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), uint64(heads)))
	s := step{heads: heads, q: normal(rng, tokens*heads*cache.D), sink: make([]float32, heads),
		win: recordSet(t, winRecord, 64, tokens, normal(rng, win*cache.D))}
	for h := range s.sink {
		s.sink[h] = []float32{inf(-1), 0, 3, -3, 1}[h%5]
	}
	if comp > 0 {
		s.comp = recordSet(t, compRecord, 2, tokens, normal(rng, comp*cache.D))
		s.comp.Indices[3] = -1
	}
	for i := range s.q[:heads*cache.D*min(growth, 1)] {
		s.q[i] = numfmt.BF16Encode(numfmt.BF16Decode(s.q[i]) * float32(1+i/cache.D/growth))
	}
	if tokens > 1 {
		s.win.Lens[1], s.win.Indices[17] = 2, math.MaxInt32
	}
	return s
}

// large are n rows of numbers up to four times a size.
func large(t *testing.T, n int, by float32) []uint16 {
	v := normal(rand.New(rand.NewPCG(testkit.Seed(t), 9)), n*cache.D)
	for i := range v {
		v[i] = numfmt.BF16Encode(min(max(numfmt.BF16Decode(v[i]), -4), 4) * by)
	}
	return v
}

// bothLayouts runs f as it is on the device and, where that makes a difference, as on one
// whose matrices lie in lanes in another way.
func bothLayouts(t *testing.T, cfg attention.DecoderConfig, f func(t *testing.T)) {
	t.Helper()
	if attention.InLanes(must[*attention.Decoder](t)(attention.NewDecoder(testkit.Device(t), cfg))) {
		t.Run("in lanes", f)
	}
	attention.WithoutLanes(func() { t.Run("without", f) })
}

// As few heads, and with little shared memory, where rows lie so that lanes load them themselves,
// as far as lanes hold what lavapipe's do.
func TestDecodeByRows(t *testing.T) {
	dev := testkit.Device(t)
	if !dev.Caps().Features["coopmat.f16.f32"] {
		t.Skip("no matrices of f16")
	}
	attention.ByRows(func() {
		op := must[*attention.Decoder](t)(attention.NewDecoder(dev, attention.DecoderConfig{Heads: 21, WindowPage: 64,
			Variant: opkit.CM, OnDemand: true}))
		assert.Equal(t, dev.Adapter().Type == vk.TypeCPU, attention.DecodeRows(op) == 2)
		t.Run("FewHeads", func(t *testing.T) { decodeForm(t, "few heads") })
		t.Run("Devices", TestDecodeDevices)
	})
}

// Devices with little shared memory, and profiles of some, have workgroups of few rows at a time.
func TestDecodeDevices(t *testing.T) {
	for name, c := range map[string]struct {
		profile string
		shared  uint32 // 0: as it is
		variant string
		heads   []int
		rows    uint32 // at a time; 0: any
		v41     bool   // as DeepSeek-V4.1 has records, where lanes load rows themselves
	}{
		"4 rows at a time, as Intel's GPUs get them": {"xe", 0, opkit.Base, []int{8, 21}, 0, false},
		"8 rows, whose output leaves in two parts":   {"", 17 << 10, opkit.CM, []int{13}, 8, false}, // not on every device
		"16 rows": {"", 32 << 10, opkit.CM, []int{13}, 16, false},
		"all heads, beside half a tile of 16 rows": {"rdna4", 24 << 10, opkit.CM, []int{61}, 8, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := *testkit.Device(t).Adapter()
			missing := testkit.LeftOut(opkit.CM) || attention.CanDecode(&a, opkit.CM, 64) != nil || c.v41 && a.Type != vk.TypeCPU
			if c.variant == opkit.CM && missing {
				t.Skip("no matrices of f16, or no processor's")
			}
			if c.shared > 0 {
				a.Caps.SharedMemory = c.shared
			}
			dev := must[*vk.Device](t)(a.Open(vk.DeviceOptions{Profile: c.profile}))
			t.Cleanup(func() { assert.NoError(t, dev.Close()) })
			for _, heads := range c.heads {
				s := newForm(t, heads, 2, 69, 61, cache.RecordV4, cache.RecordV4, 0)
				if c.v41 {
					s = newForm(t, heads, 2, 69, 41, cache.RecordFP8, cache.RecordFP4, 4)
				}
				for _, splits := range []int{1, 3} {
					cfg := s.config(c.variant)
					cfg.Splits, cfg.OnDemand = splits, true
					run := func() {
						if _, err := attention.NewDecoder(dev, cfg); c.shared == 17<<10 && errors.Is(err, vk.ErrMissingFeature) {
							t.Skip(err)
						}
						out, lse := s.decode(t, dev, cfg)
						s.check(t, c.variant, out, lse)
					}
					if c.v41 {
						cfg.Workgroups = 1
						attention.ByRows(run)
					} else {
						run()
					}
				}
			}
			if c.rows > 0 {
				k := dev.Kernels()[0]
				assert.Equal(t, "attn_decode_cm", k.Name())
				assert.Equal(t, c.rows, k.Constants()[3], "rows at a time")
				if c.v41 {
					assert.EqualValues(t, 64, k.Constants()[2], "heads")
					assert.EqualValues(t, 2, k.Constants()[10], "how rows lie")
				}
			}
		})
	}
}

// A NaN anywhere in a row, a code or a scale of RecordFP4, is a NaN there in all heads of a token
// that attends it, and in nothing of others, whose rows lie beside it.
func TestDecodeNaNCode(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 10))
	const heads, rows = 33, 7
	for _, records := range [][]cache.Record{{cache.RecordV4}, {cache.RecordFP8, cache.RecordFP4}, {cache.RecordFP4, cache.RecordFP8},
		{cache.RecordFP4, cache.RecordFP4}} {
		dims := []int{0, 9, 130, 255, 383, 384, 447, 448, 511}
		if records[0] == cache.RecordV4 {
			dims = dims[:7] // of codes
		} else if os.Getenv("VKMLA_TEST_FULL") != "1" {
			continue
		}
		tokens := len(records)*len(dims) + 1
		s, sets := step{heads: heads, q: normal(rng, tokens*heads*cache.D)}, make([]*attention.Slots, 2)
		for half, r := range records {
			x := recordSet(t, r, 32, tokens, normal(rng, (len(dims)+rows)*cache.D))
			for i := range x.Indices {
				x.Indices[i] = int32(5 + len(dims) + i%rows)
			}
			for i, d := range dims { // token i of this half attends row i, NaN in dims[i]
				if r == cache.RecordFP4 {
					x.Pool[x.Layout.ScaleOffset(int64(5+i))+int64(d/16)] = 0x7F
				} else {
					x.Pool[x.Layout.RowOffset(int64(5+i))+int64(d)] = 0x7F | byte(i%2)<<7
				}
				x.Indices[(half*len(dims)+i)*x.Width+i] = int32(5 + i)
			}
			sets[half] = x
		}
		s.win, s.comp = sets[0], sets[1]
		for _, v := range variants(t, dev, heads) {
			t.Run(subtest(records, v), func(t *testing.T) {
				cfg := s.config(v)
				cfg.Workgroups = 1
				bothLayouts(t, cfg, func(t *testing.T) {
					out, _ := s.decode(t, dev, cfg)
					for i, x := range out {
						token, d := i/(heads*cache.D), i%cache.D
						nan, last := math.IsNaN(float64(numfmt.BF16Decode(x))), token == tokens-1
						if last && nan || !last && d == dims[token%len(dims)] && !nan {
							t.Fatalf("token %d, head %d, dim %d: %#x", token, i/cache.D%heads, d, x)
						}
					}
				})
			})
		}
	}
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

// Whatever name is refused, the error says all that there are.
func TestUnknownDecoder(t *testing.T) {
	dev := testkit.Device(t)
	for _, name := range []string{"fastest", opkit.TwoPass + "fastest"} {
		_, made := attention.NewDecoder(dev, attention.DecoderConfig{Heads: 5, WindowPage: 16, Variant: name})
		for _, err := range []error{made, attention.CanDecode(dev.Adapter(), name, 5)} {
			require.ErrorIs(t, err, vk.ErrArgument)
			require.Contains(t, err.Error(), " base da twopass-")
			assert.Contains(t, err.Error(), name)
		}
	}
}

func TestDecodeArguments(t *testing.T) {
	dev := testkit.Device(t)
	s := newForm(t, 4, 2, 64, 64, cache.RecordV4, cache.RecordV4, 0)
	for _, v := range []string{opkit.Base, opkit.TwoPass + opkit.Base} {
		cfg := s.config(v)
		cfg.Splits = 2
		op := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
		r := verify.NewRig(t.Context(), dev)
		defer r.Close()
		good := s.args(r, op)
		require.NoError(t, r.Err())
		testkit.Changes[attention.DecodeArgs]{
			"Window.Cache.Pool": {func(a *attention.DecodeArgs) { a.Window.Cache = cache.KVCache{Layout: a.Window.Cache.Layout} },
				func(a *attention.DecodeArgs) { a.Window.Cache.Layout.Stride += 8 }},
			"Stride": {func(a *attention.DecodeArgs) { a.Window.Cache.Layout.Stride = 0 },
				func(a *attention.DecodeArgs) { a.Window.Cache.Layout.Stride = 12 }},
			"Window.Cache.Layout.Page": {func(a *attention.DecodeArgs) { a.Window = a.Compressed }},
			"Scratch": {func(a *attention.DecodeArgs) { a.Scratch = vk.View{} }, func(a *attention.DecodeArgs) { a.Scratch.Size = 1000 },
				func(a *attention.DecodeArgs) { a.Scratch.Offset += 16 }},
		}.Refuse(t, dev, op.Record, good)
		cfg.CompressedPage = 0
		windowOnly := must[*attention.Decoder](t)(attention.NewDecoder(dev, cfg))
		refuses(t, dev, "Compressed", func(rec *vk.Recorder) error { return windowOnly.Record(rec, good) })
	}
}

// The definition, where its result is known without computing an attention: q = 0 averages, one key
// is copied, nothing valid is zero, a sink that equals the lse halves the output, and every index
// twice changes nothing but the lse, by ln 2.
func TestDecodeRef(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	ref := func(s step) (out, lse []float32) {
		out, lse, err := attention.DecodeRef(s.q, s.heads, s.win, s.comp, s.sink, attention.DefaultScale)
		require.NoError(t, err)
		return out, lse
	}
	rows := func(x *attention.Slots) []float32 {
		bits := make([]uint16, len(x.Indices)*cache.D)
		require.NoError(t, cache.GatherSlotsRef(bits, x.Pool, x.Layout, x.Indices))
		return numfmt.BF16DecodeSlice(nil, bits)
	}
	average := step{4, make([]uint16, 4*cache.D), set(t, 64, 1, normal(rng, 21*cache.D)), nil, []float32{inf(-1), 0, 2, inf(1)}}
	out, lse := ref(average)
	for h, sink := range average.sink {
		assert.InDelta(t, math.Log(21), lse[h], 1e-6)
		for d := range cache.D {
			sum, all := 0.0, rows(average.win)
			for j := range 21 {
				sum += float64(all[j*cache.D+d])
			}
			assert.InDelta(t, sum/(21+math.Exp(float64(sink))), out[h*cache.D+d], 1e-6, "head %d, dim %d", h, d)
		}
	}
	one := step{1, normal(rng, cache.D), set(t, 2, 1, normal(rng, cache.D)), nil, nil}
	out, lse = ref(one)
	assert.Equal(t, rows(one.win), out)
	dot := 0.0
	for d, x := range numfmt.BF16DecodeSlice(nil, one.q) {
		dot += float64(x) * float64(out[d])
	}
	assert.InDelta(t, dot*float64(attention.DefaultScale), lse[0], 1e-5*max(1, math.Abs(dot)))

	none := step{2, normal(rng, 6*cache.D), set(t, 64, 3, normal(rng, 5*cache.D)), set(t, 2, 3, normal(rng, 7*cache.D)), nil}
	none.sink = []float32{inf(1), 1e38}
	for i := range none.win.Indices {
		none.win.Indices[i] = []int32{-1, math.MinInt32, math.MaxInt32, 1 << 20}[i%4]
	}
	none.win.Lens[1], none.comp.Lens = 0, []int32{0, -3, 7}
	copy(none.comp.Indices[14:], slices.Repeat([]int32{-1}, 7))
	out, lse = ref(none)
	assert.Equal(t, make([]float32, len(out)), out)
	assert.Equal(t, slices.Repeat([]float32{inf(1)}, 6), lse)

	s := step{8, normal(rng, 8*cache.D), set(t, 64, 1, normal(rng, 61*cache.D)), set(t, 2, 1, normal(rng, 69*cache.D)), nil}
	out, lse = ref(s)
	s.sink = lse
	half, _ := ref(s)
	s.sink = nil
	for _, x := range []*attention.Slots{s.win, s.comp} {
		x.Indices, x.Width, x.Lens[0] = slices.Repeat(x.Indices, 2), 2*x.Width, 2*x.Lens[0]
	}
	same, more := ref(s)
	for i, o := range out {
		assert.InDelta(t, o/2, half[i], 1e-6, "with sink = lse")
		assert.InDelta(t, o, same[i], 1e-6, "with every index twice")
	}
	for h := range lse {
		assert.InDelta(t, float64(lse[h])+math.Ln2, more[h], 1e-5)
	}
}
