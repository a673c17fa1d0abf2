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

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestLinear(t *testing.T) { testkit.TestOp(t, "linear") }

func TestLinearDots(t *testing.T) { testkit.TestDots(t, "linear") }

var weightFormats = []projection.Format{projection.FormatBF16, projection.FormatFP8F32, projection.FormatFP8, projection.FormatNVFP4}

// linearTokens are numbers of tokens on both sides of every change of kernel.
var linearTokens = []int{1, 2, 3, 5, 9, 17, 33, 65, 129, 300}

// eachLinear runs a test for every variant that the device has, but for those left out.
func eachLinear(t *testing.T, dev *vk.Device, f func(t *testing.T, variant string)) {
	everyLinear(t, dev, func(t *testing.T, variant string) {
		if testkit.LeftOut(variant) {
			t.Skip("left out")
		}
		f(t, variant)
	})
}

// everyLinear is eachLinear that leaves out nothing.
func everyLinear(t *testing.T, dev *vk.Device, f func(t *testing.T, variant string)) {
	for _, v := range opkit.Builds("proj_linear") {
		t.Run(v.Name, func(t *testing.T) {
			cfg := projection.LinearConfig{N: 8, K: 8, Weights: projection.FormatBF16, Out: tensor.F32, MaxTokens: 1, Variant: v.Name}
			if _, err := projection.NewLinear(dev, cfg); errors.Is(err, vk.ErrMissingFeature) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			f(t, v.Name)
		})
	}
}

func linearConfig(h projection.LinearHost, variant string) projection.LinearConfig {
	return projection.LinearConfig{N: h.N, K: h.K, Groups: h.Groups, Weights: h.Weights, Activations: h.Activations, Out: tensor.F32, Variant: variant}
}

// linearRig places operands in device memory.
func linearRig(r *verify.Rig, h projection.LinearHost, scratch int) projection.LinearArgs {
	stored := map[tensor.DType]vectors.Type{tensor.U8: vectors.U8, tensor.BF16: vectors.U16, tensor.F16: vectors.U16,
		tensor.U32: vectors.U32, tensor.F32: vectors.F32}
	in := func(is tensor.Tensor, data []byte) tensor.Tensor {
		return r.In(vectors.Array{Type: stored[is.DType], Shape: is.Shape, Data: data}, is.DType)
	}
	is := h.Weights.Shapes(h.Groups*h.N, h.K)
	a := projection.LinearArgs{W: projection.LinearWeights{Data: in(is.Data, h.Data)}}
	if is.Scale.Shape != nil {
		a.W.Scale = in(is.Scale, h.Scale)
	}
	if is.RowScale.Shape != nil {
		a.W.RowScale = r.In(vectors.FromF32(h.RowScale, len(h.RowScale)), tensor.F32)
	}
	switch h.Activations {
	case projection.ActivationBF16:
		a.X = r.In(vectors.Array{Type: vectors.U16, Shape: []int{h.T, h.Groups, h.K}, Data: h.X}, tensor.BF16)
	case projection.ActivationFP8:
		a.XScale = r.In(vectors.Array{Type: vectors.F32, Shape: []int{h.Groups, h.K / 128, h.ScalePitch}, Data: h.XScale}, tensor.F32)
	default:
		words := len(h.XScale) / 4 / h.Groups / h.ScalePitch
		a.XScale = r.In(vectors.Array{Type: vectors.I32, Shape: []int{h.Groups, words, h.ScalePitch}, Data: h.XScale}, tensor.I32)
	}
	if h.Activations != projection.ActivationBF16 {
		a.X = r.In(vectors.Array{Type: vectors.U8, Shape: []int{h.Groups, h.T, h.K}, Data: h.X}, tensor.U8)
	}
	a.Out = r.Out(tensor.F32, h.T, h.Groups, h.N)
	if scratch > 0 {
		a.Scratch = r.Out(tensor.F32, scratch)
	}
	return a
}

// linear runs an operation with so much of the scratch memory that it asks for.
func linear(t *testing.T, dev *vk.Device, h projection.LinearHost, op *projection.Linear, share float64) []float32 {
	t.Helper()
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	a := linearRig(r, h, int(share*float64(op.ScratchLen(h.T))))
	r.Do(func(rec *vk.Recorder) error { return op.Record(rec, a) })
	return must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out}))["out"].F32()
}

// linearHost makes operands with the numbers of weight and x: weights as codes of the format (bf16
// bits, E4M3, E2M1), activations as numbers. Scales are 1 until a test sets others.
func linearHost(f projection.Format, tokens, groups, n, k int, weight func(row, k int) uint16, x func(t, k int) float32) projection.LinearHost {
	rows := groups * n
	h := projection.LinearHost{T: tokens, Groups: groups, N: n, K: k, Weights: f, Data: make([]byte, f.DataBytes(rows, k))}
	for row := range rows {
		for i := range k {
			at, code := row*k+i, weight(row, i)
			switch f {
			case projection.FormatBF16:
				binary.LittleEndian.PutUint16(h.Data[2*at:], code)
			case projection.FormatNVFP4:
				h.Data[at/2] |= byte(code) << (at % 2 * 4)
			default:
				h.Data[at] = byte(code)
			}
		}
	}
	blocks := (rows + 127) / 128 * ((k + 127) / 128)
	switch f {
	case projection.FormatFP8F32:
		for range blocks {
			h.Scale = binary.LittleEndian.AppendUint32(h.Scale, math.Float32bits(1))
		}
	case projection.FormatFP8:
		h.Scale = slices.Repeat([]byte{127}, blocks)
	case projection.FormatFP8x32:
		h.Scale = slices.Repeat([]byte{127}, (rows+31)/32*((k+31)/32))
	case projection.FormatNVFP4:
		h.Scale, h.RowScale = slices.Repeat([]byte{0x38}, rows*k/16), slices.Repeat([]float32{1}, rows)
	case projection.FormatFP8Rows:
		h.RowScale = slices.Repeat([]float32{1}, rows)
	}
	for i := range tokens * groups {
		for j := range k {
			h.X = binary.LittleEndian.AppendUint16(h.X, numfmt.BF16Encode(x(i, j)))
		}
	}
	return h
}

// small is the code of a whole number of -3 to 3.
func small(f projection.Format, v int) uint16 {
	switch f {
	case projection.FormatBF16:
		return numfmt.BF16Encode(float32(v))
	case projection.FormatNVFP4:
		return uint16(numfmt.E2M1Encode(float32(v)))
	}
	return uint16(numfmt.E4M3Encode(float32(v)))
}

// randomHost makes operands of ordinary size.
func randomHost(rng *rand.Rand, f projection.Format, tokens, groups, n, k int) projection.LinearHost {
	return linearHost(f, tokens, groups, n, k, func(_, _ int) uint16 {
		switch f {
		case projection.FormatBF16:
			return numfmt.BF16Encode(float32(rng.NormFloat64()))
		case projection.FormatNVFP4:
			return uint16(rng.UintN(16))
		}
		return uint16(numfmt.E4M3Encode(float32(rng.NormFloat64())))
	}, func(_, _ int) float32 { return float32(rng.NormFloat64()) })
}

// Sums of small whole numbers times powers of two, exact in any order, in every
// kernel: whatever is dropped, counted twice or put elsewhere shows.
func TestLinearExact(t *testing.T) {
	dev := testkit.Device(t)
	for _, f := range weightFormats {
		for _, groups := range []int{1, 2} {
			rng := rand.New(rand.NewPCG(1, uint64(f)))
			whole := linearHost(f, 300, groups, 168, 352, func(int, int) uint16 { return small(f, rng.IntN(7)-3) },
				func(int, int) float32 { return float32(rng.IntN(7) - 3) })
			for i := range whole.RowScale {
				whole.RowScale[i] = float32(math.Ldexp(1, i%5-2))
			}
			for i := range whole.Scale {
				switch f {
				case projection.FormatFP8:
					whole.Scale[i] = byte(125 + rng.IntN(5))
				case projection.FormatFP8F32:
					if i%4 == 3 { // the exponent's low bits
						binary.LittleEndian.PutUint32(whole.Scale[i-3:], math.Float32bits(float32(math.Ldexp(1, rng.IntN(5)-2))))
					}
				case projection.FormatNVFP4:
					whole.Scale[i] = byte(0x30 + 8*rng.IntN(3))
				}
			}
			want := make([]float64, whole.T*groups*whole.N)
			require.NoError(t, projection.LinearRef(whole, want))
			eachLinear(t, dev, func(t *testing.T, variant string) {
				cfg := linearConfig(whole, variant)
				if groups > 1 {
					cfg.Workgroups = 264 // a large device's kernels for few rows
				}
				op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
				for _, tokens := range linearTokens {
					for _, share := range []float64{0, 0.6, 1} {
						if share > 0 && op.ScratchLen(tokens) == 0 {
							continue
						}
						h := whole
						h.T, h.X = tokens, whole.X[:2*tokens*groups*h.K]
						for i, v := range linear(t, dev, h, op, share) {
							if float64(v) != want[i] {
								t.Fatalf("%v, %d groups, %d tokens, %.0f %% of scratch: output %d is %g, want %g", f, groups, tokens, 100*share, i, v, want[i])
							}
						}
					}
				}
			})
		}
	}
}

// Every code of every format in every place of a row, picked by tokens that are 1
// there and 0 elsewhere: decoding is exact under scales that are powers of two.
func TestLinearCodes(t *testing.T) {
	dev := testkit.Device(t)
	const k = 64
	for _, f := range weightFormats {
		codes := map[projection.Format]int{projection.FormatNVFP4: 16, projection.FormatBF16: 512}[f]
		if codes == 0 {
			codes = 256
		}
		code := func(row, i int) uint16 {
			c := uint16((row + i*5) % codes)
			if f == projection.FormatBF16 {
				return c&0xFF | 0x3F00 | c>>8<<15 // 0.5 to 2, both signs
			}
			if c&0x7F == 0x7F {
				return 0
			}
			return c
		}
		h := linearHost(f, k, 1, codes+8, k, code, func(t, i int) float32 { return float32(max(0, 1-max(t-i, i-t))) })
		switch f {
		case projection.FormatFP8:
			h.Scale = []byte{100, 99, 105}[:len(h.Scale)]
		case projection.FormatNVFP4:
			for i := range h.Scale {
				h.Scale[i] = byte(1 + i%0x7E) // every scale, subnormal ones too
			}
			for i := range h.RowScale {
				h.RowScale[i] = 0x1p-9
			}
		}
		want := make([]float64, h.T*h.N)
		require.NoError(t, projection.LinearRef(h, want))
		eachLinear(t, dev, func(t *testing.T, variant string) {
			op := must[*projection.Linear](t)(projection.NewLinear(dev, linearConfig(h, variant)))
			for _, tokens := range []int{k, 1} { // by the kernel for few tokens, one by one
				for first := 0; first < k; first += tokens {
					x := h
					x.T, x.X = tokens, h.X[2*first*k:][:2*tokens*k]
					for i, v := range linear(t, dev, x, op, 1) {
						if w := want[first*h.N+i]; float64(v) != w {
							t.Fatalf("%v, %d tokens: number %d of row %d is %g, want %g", f, tokens, first+i/h.N, i%h.N, v, w)
						}
					}
				}
			}
		})
	}
}

// Scales of the whole range of f32, also such as are no powers of two: the products are
// exact, and what is left is the rounding of f32 sums.
func TestLinearScales(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(3, 3))
	for _, exponent := range []int{-100, -40, 0, 40, 90} {
		for _, f := range weightFormats[1:3] {
			h := randomHost(rng, f, 20, 1, 136, 256)
			for i := range h.Scale {
				if f == projection.FormatFP8 {
					h.Scale[i] = byte(127 + exponent + rng.IntN(3))
				} else if i%4 == 0 {
					binary.LittleEndian.PutUint32(h.Scale[i:], math.Float32bits(float32(math.Ldexp(1+rng.Float64(), exponent))))
				}
			}
			want := make([]float64, h.T*h.N)
			require.NoError(t, projection.LinearRef(h, want))
			eachLinear(t, dev, func(t *testing.T, variant string) {
				op := must[*projection.Linear](t)(projection.NewLinear(dev, linearConfig(h, variant)))
				for _, tokens := range []int{1, 20} {
					x := h
					x.T, x.X = tokens, h.X[:2*tokens*h.K]
					nearLinear(t, linear(t, dev, x, op, 1), want[:tokens*h.N], 1e-6)
				}
			})
		}
	}
}

// nearLinear demands a small difference of all numbers relative to their root mean
// square.
func nearLinear(t *testing.T, got []float32, want []float64, bound float64) {
	t.Helper()
	var diff, norm float64
	for i, w := range want {
		norm += w / 0x1p64 * (w / 0x1p64)
		d := (float64(got[i]) - w) / 0x1p64
		diff += d * d
	}
	assert.Less(t, math.Sqrt(diff/norm), bound, "relative L2 error, want below")
}

// The same bits on every run, and for a token wherever it stands; NaNs of one token
// do not reach another.
func TestLinearSameBits(t *testing.T) {
	dev := testkit.Device(t)
	for _, f := range weightFormats {
		for _, tokens := range []int{3, 7, 40, 130} {
			h := randomHost(rand.New(rand.NewPCG(4, uint64(f))), f, tokens, 1, 136, 608)
			eachLinear(t, dev, func(t *testing.T, variant string) {
				op := must[*projection.Linear](t)(projection.NewLinear(dev, linearConfig(h, variant)))
				first := linear(t, dev, h, op, 1)
				turned := h
				turned.X = append(slices.Clone(h.X[2*h.K:]), h.X[:2*h.K]...)
				for i := range h.K {
					binary.LittleEndian.PutUint16(turned.X[2*((tokens-1)*h.K+i):], 0xFFC0)
				}
				second := linear(t, dev, turned, op, 1)
				for i := range (tokens - 1) * h.N {
					if a, b := math.Float32bits(first[i+h.N]), math.Float32bits(second[i]); a != b {
						t.Fatalf("%v, %d tokens: output %d is %08x, then %08x", f, tokens, i, a, b)
					}
				}
				for _, v := range second[(tokens-1)*h.N:] {
					if v == v {
						t.Fatalf("%v, %d tokens: the sum of NaNs is %g", f, tokens, v)
					}
				}
			})
		}
	}
}

// TestLinearBuilds makes the layers of V4-Flash and V4-Pro in every format and
// variant; it executes nothing, and so runs on a driver that can only compile.
func TestLinearBuilds(t *testing.T) {
	dev := testkit.Device(t)
	for _, s := range [][3]int{{1536, 4096, 1}, {32768, 1024, 1}, {1024, 4096, 8}, {7168, 16384, 1}, {64, 7168, 1}} {
		for _, f := range weightFormats {
			for _, v := range opkit.Builds("proj_linear") {
				cfg := projection.LinearConfig{N: s[0], K: s[1], Groups: s[2], Weights: f, Out: tensor.BF16, Variant: v.Name}
				_, err := projection.NewLinear(dev, cfg)
				assert.False(t, err != nil && !errors.Is(err, vk.ErrMissingFeature) && !(v.Name == "base" && errors.Is(err, vk.ErrArgument)),
					"%+v: %v", cfg, err)
			}
		}
	}
	testkit.Compile(t, dev)
}

// Tiles of every kind that memory allows, in forced sizes, against whole numbers.
func TestLinearTilings(t *testing.T) {
	dev := testkit.Device(t)
	for i, f := range weightFormats {
		rng := rand.New(rand.NewPCG(6, uint64(i)))
		h := linearHost(f, 77, 2, 88, 224, func(int, int) uint16 { return small(f, rng.IntN(7)-3) }, func(int, int) float32 { return float32(rng.IntN(7) - 3) })
		want := make([]float64, h.T*h.Groups*h.N)
		require.NoError(t, projection.LinearRef(h, want))
		for _, variant := range []string{opkit.CM, opkit.CMB} {
			tilings := [][5]int{
				{64, 64, 32, 16, 16}, {128, 128, 32, 64, 64}, {128, 128, 16, 32, 16},
				{256, 128, 16, 64, 64}, {128, 64, 16, 32, 32}, {64, 128, 16, 32, 64}, {32, 128, 32, 32, 32}, {16, 128, 64, 16, 32}, {16, 32, 128, 16, 16},
			}
			if dev.Adapter().Type == vk.TypeCPU { // some seconds to compile each, and formats differ in decoding only
				tilings = map[projection.Format][][5]int{
					projection.FormatBF16:   {{128, 128, 16, 32, 16}, {16, 32, 64, 16, 16}},
					projection.FormatFP8F32: {{64, 64, 32, 16, 16}, {128, 64, 16, 32, 32}},
					projection.FormatFP8:    {{64, 64, 32, 16, 16}, {64, 128, 16, 32, 64}},
					projection.FormatNVFP4:  {{64, 64, 32, 16, 16}, {32, 128, 32, 32, 32}},
				}[f]
			}
			for _, tiling := range tilings {
				t.Run(fmt.Sprint(f, "/", variant, tiling), func(t *testing.T) {
					op, err := projection.NewLinearTiled(dev, linearConfig(h, variant), tiling)
					if errors.Is(err, vk.ErrMissingFeature) {
						t.Skip(err)
					}
					require.NoError(t, err)
					for i, v := range linear(t, dev, h, op, 1) {
						if float64(v) != want[i] {
							t.Fatalf("output %d is %g, want %g", i, v, want[i])
						}
					}
				})
			}
		}
	}
}

// Where a device's matrices lie in lanes as they want them, the kernels that load
// fragments themselves are there: lavapipe, which the tests know, has rows of eight lanes.
func TestLinearInLanes(t *testing.T) {
	dev := testkit.Device(t)
	op, err := projection.NewLinear(dev, projection.LinearConfig{N: 1536, K: 4096, Weights: projection.FormatFP8F32, Out: tensor.BF16, Variant: opkit.CM})
	if errors.Is(err, vk.ErrMissingFeature) {
		t.Skip(err)
	}
	require.NoError(t, err)
	few, more := projection.Lanes(op)
	t.Logf("%s: a row is shared by %d lanes of tokens8to32, %d of tokens32to64", dev.Adapter().Name, few, more)
	assert.False(t, dev.Adapter().DriverName == "llvmpipe" && (few != 8 || more != 8),
		"%d and %d lanes, want 8", few, more)
}

// Tiles and passes that a CPU does without, against whole numbers.
func TestLinearBaseTiles(t *testing.T) {
	dev := testkit.Device(t)
	testkit.WithoutMatrices(t)
	const f = projection.FormatFP8F32
	rng := rand.New(rand.NewPCG(7, 7))
	h := linearHost(f, 256, 1, 264, 160, func(int, int) uint16 { return small(f, rng.IntN(7)-3) }, func(int, int) float32 { return float32(rng.IntN(7) - 3) })
	want := make([]float64, h.T*h.N)
	require.NoError(t, projection.LinearRef(h, want))
	cfg := linearConfig(h, opkit.Base)
	cfg.Workgroups = 2
	hopper, err := tuning.Named("hopper")
	require.NoError(t, err)
	op := must[*projection.Linear](t)(projection.NewLinearOf(dev, cfg, &hopper.Linear))
	check := func(op *projection.Linear, tokens int) {
		x := h
		x.T, x.X = tokens, h.X[:2*tokens*h.K]
		for i, v := range linear(t, dev, x, op, 0) {
			if float64(v) != want[i] {
				t.Fatalf("%d tokens: output %d is %g, want %g", tokens, i, v, want[i])
			}
		}
	}
	check(op, 7)  // a pass of 8
	check(op, 21) // two of 16
	tiles := projection.OnlyTiles(op)
	require.Len(t, tiles, 3, "tiles")
	for _, x := range tiles {
		check(x, 77)
		check(x, 256)
	}
}

// Halves hold up to 65504: larger weights and inputs of either sign count as that in both kernels
// that multiply halves, and no number becomes infinite.
func TestLinearHalvesEnd(t *testing.T) {
	dev := testkit.Dots(t)
	weights := []float32{1, -1, 65280, 65536, -65536, 1 << 20, -0x1p100, float32(math.NaN())}
	inputs := []float32{1, -1, 0x1p17, -0x1p90}
	h := linearHost(projection.FormatBF16, 70, 1, len(weights), 64, func(row, k int) uint16 {
		if k == row+3 {
			return numfmt.BF16Encode(weights[row])
		}
		return 0
	}, func(token, _ int) float32 { return inputs[token%len(inputs)] })
	op, err := projection.NewLinear(dev, linearConfig(h, opkit.Dot))
	require.NoError(t, err)
	half := func(v float32) float32 { return max(-65504, min(v, 65504)) } // NaN stays one
	for _, tokens := range []int{40, 70} {
		x := h
		x.T, x.X = tokens, h.X[:2*tokens*h.K]
		for i, v := range linear(t, dev, x, op, 0) {
			token, row := i/h.N, i%h.N
			want := half(inputs[token%len(inputs)]) * half(weights[row])
			same := v == want || math.IsNaN(float64(v)) && math.IsNaN(float64(want))
			require.True(t, same, "%d tokens: output %d of token %d is %g, want %g", tokens, row, token, v, want)
		}
	}
}

// On demand, a layer asks for the one kernel of a number of tokens, and for another if K is cut. It
// plans the same launches as a layer that asks for all kernels.
func TestLinearOnDemand(t *testing.T) {
	// Nothing reads the scratch, which has room for all parts.
	scratch := tensor.Of(vk.View{Buffer: new(vk.Buffer)}, tensor.F32, 1<<30)
	for _, d := range knowncaps.Devices() {
		t.Run(d.Name, func(t *testing.T) {
			all, some := testkit.As(t, d), testkit.As(t, d)
			for _, tokens := range []int{1, 2, 4, 8, 16, 32, 64, 100, 1000} {
				cfg := projection.LinearConfig{N: 1024, K: 4096, Weights: projection.FormatFP8F32, Out: tensor.BF16, MaxTokens: tokens}
				before := len(all.Kernels())
				eager, err := projection.NewLinear(all, cfg)
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				cfg.OnDemand = true
				none := len(some.Kernels())
				lazy := must[*projection.Linear](t)(projection.NewLinear(some, cfg))
				assert.Len(t, some.Kernels(), none, "%d tokens: before Prepare", tokens)
				require.NoError(t, lazy.Prepare(tokens, scratch))
				require.NoError(t, lazy.Prepare(tokens, scratch))
				most := none + 1
				if lazy.ScratchLen(tokens) > 0 {
					most++
				}
				assert.LessOrEqual(t, len(some.Kernels()), most, "%d tokens: after Prepare", tokens)
				assert.Subset(t, named(all), named(some), "%d tokens", tokens)
				assert.Equal(t, eager.ScratchLen(tokens), lazy.ScratchLen(tokens), "%d tokens", tokens)
				if tokens == 1 {
					assert.Greater(t, len(all.Kernels()), before)
				}
				for _, wrong := range []int{-1, 0, tokens + 1} {
					assert.ErrorIs(t, lazy.Prepare(wrong, scratch), vk.ErrArgument, "%d of %d tokens", wrong, tokens)
				}
			}
			assert.NotEmpty(t, some.Kernels())
		})
	}
}

// named lists the kernels that a device was asked for.
func named(dev *vk.Device) (list []string) {
	for _, k := range dev.Kernels() {
		list = append(list, fmt.Sprint(k.Name(), " ", k.Constants(), " ", k.SubgroupSize()))
	}
	return list
}
