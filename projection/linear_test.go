package projection_test

import (
	"cmp"
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

// linearRig places operands in device memory, and what they are multiplied to.
func linearRig(r *verify.Rig, h projection.LinearHost, scratch int) projection.LinearArgs {
	a := verify.LinearArgs(r, h)
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

// whole makes operands of small whole numbers under scales that are powers of two and change from
// block to block: sums are exact in any order, so whatever is dropped, counted twice or put
// elsewhere shows.
func whole(seed uint64, f projection.Format, tokens, groups, n, k int) projection.LinearHost {
	rng := rand.New(rand.NewPCG(seed, uint64(f)))
	h := linearHost(f, tokens, groups, n, k, func(int, int) uint16 { return small(f, rng.IntN(7)-3) },
		func(int, int) float32 { return float32(rng.IntN(7) - 3) })
	for i := range h.RowScale {
		h.RowScale[i] = float32(math.Ldexp(1, i%5-2))
	}
	for i := range h.Scale {
		switch {
		case f == projection.FormatNVFP4:
			h.Scale[i] = byte(0x30 + 8*rng.IntN(3))
		case f != projection.FormatFP8F32:
			h.Scale[i] = byte(125 + rng.IntN(5))
		case i%4 == 3:
			binary.LittleEndian.PutUint32(h.Scale[i-3:], math.Float32bits(float32(math.Ldexp(1, rng.IntN(5)-2))))
		}
	}
	return h
}

// wanted returns the result of the definition.
func wanted(t *testing.T, h projection.LinearHost) []float64 {
	t.Helper()
	want := make([]float64, h.T*h.Groups*h.N)
	require.NoError(t, projection.LinearRef(h, want))
	return want
}

// exactly demands what the definition gives, with shares of the scratch memory that an operation
// asks for.
func exactly(t *testing.T, dev *vk.Device, h projection.LinearHost, want []float64, op *projection.Linear, shares ...float64) {
	t.Helper()
	for _, share := range shares {
		if share > 0 && op.ScratchLen(h.T) == 0 {
			continue
		}
		for i, v := range linear(t, dev, h, op, share) {
			if float64(v) != want[i] {
				t.Fatalf("%v, %d groups, %d tokens, %.0f %% of scratch: output %d is %g, want %g",
					h.Weights, h.Groups, h.T, 100*share, i, v, want[i])
			}
		}
	}
}

// fewer are the first tokens of operands with activations of bf16.
func fewer(h projection.LinearHost, tokens int) projection.LinearHost {
	h.T, h.X = tokens, h.X[:2*tokens*h.Groups*h.K]
	return h
}

// Every format by every kernel that a device chooses, with groups and rows that end and begin
// within blocks and tiles, in parts of K as far as scratch memory goes.
func TestLinearExact(t *testing.T) {
	dev := testkit.Device(t)
	for _, f := range slices.Concat(weightFormats, []projection.Format{projection.FormatFP8Rows, projection.FormatFP8x32}) {
		for _, groups := range []int{1, 2} {
			k := map[projection.Format]int{projection.FormatFP8x32: 368}[f]
			all := whole(1, f, 300, groups, 168, cmp.Or(k, 352))
			want := wanted(t, all)
			eachLinear(t, dev, func(t *testing.T, variant string) {
				cfg := linearConfig(all, variant)
				if groups > 1 {
					cfg.Workgroups = 264 // a large device's kernels for few rows
				}
				op := must[*projection.Linear](t)(projection.NewLinear(dev, cfg))
				for _, tokens := range []int{1, 2, 3, 5, 9, 17, 33, 65, 129, 300} { // on both sides of every change of kernel
					exactly(t, dev, fewer(all, tokens), want, op, 0, 0.6, 1)
				}
			})
		}
	}
}

// byMatrices holds a layer of whole numbers, as make makes it for each variant with matrices,
// against the definition. holds checks that it is the one that the test is about.
func byMatrices(t *testing.T, h projection.LinearHost, workgroups int,
	make func(*vk.Device, projection.LinearConfig) (*projection.Linear, error), holds func(t *testing.T, op *projection.Linear)) {
	dev, want := testkit.Device(t), wanted(t, h)
	for _, variant := range []string{opkit.CM, opkit.CMB} {
		t.Run(fmt.Sprintf("%v/x%v/%d/%d of %dx%d/%s", h.Weights, h.Activations, h.T, h.Groups, h.N, h.K, variant), func(t *testing.T) {
			cfg := linearConfig(h, variant)
			cfg.MaxTokens, cfg.Workgroups = h.T, workgroups
			op, err := make(dev, cfg)
			if errors.Is(err, vk.ErrMissingFeature) {
				t.Skip(err)
			}
			require.NoError(t, err)
			holds(t, op)
			exactly(t, dev, h, want, op, 0, 1)
		})
	}
}

// tiled makes layers with tiles of one shape.
func tiled(tiling [5]int) func(*vk.Device, projection.LinearConfig) (*projection.Linear, error) {
	return func(dev *vk.Device, cfg projection.LinearConfig) (*projection.Linear, error) {
		return projection.NewLinearTiled(dev, cfg, tiling)
	}
}

// Tiles of every kind that memory allows. On a processor, which takes some seconds to compile each,
// formats have some of them: they differ in decoding only.
func TestLinearTilings(t *testing.T) {
	dev := testkit.Device(t)
	for _, f := range weightFormats {
		tilings := [][5]int{
			{64, 64, 32, 16, 16}, {128, 128, 32, 64, 64}, {128, 128, 16, 32, 16}, {256, 128, 16, 64, 64}, {128, 64, 16, 32, 32},
			{64, 128, 16, 32, 64}, {32, 128, 32, 32, 32}, {16, 128, 64, 16, 32}, {16, 32, 128, 16, 16},
		}
		if dev.Adapter().Type == vk.TypeCPU {
			tilings = map[projection.Format][][5]int{
				projection.FormatBF16:   {{128, 128, 16, 32, 16}, {16, 32, 64, 16, 16}},
				projection.FormatFP8F32: {{64, 64, 32, 16, 16}, {128, 64, 16, 32, 32}},
				projection.FormatFP8:    {{64, 64, 32, 16, 16}, {64, 128, 16, 32, 64}},
				projection.FormatNVFP4:  {{64, 64, 32, 16, 16}, {32, 128, 32, 32, 32}},
			}[f]
		}
		for _, tiling := range tilings {
			byMatrices(t, whole(6, f, 77, 2, 88, 224), 0, tiled(tiling), func(*testing.T, *projection.Linear) {})
		}
	}
	byMatrices(t, whole(2, projection.FormatFP8x32, 40, 2, 104, 352), 8, tiled([5]int{16, 64, 32, 8, 16}), paired(false))
}

// paired demands that tiles are, or are not, computed by pairs of steps.
func paired(want bool) func(t *testing.T, op *projection.Linear) {
	return func(t *testing.T, op *projection.Linear) {
		assert.Equal(t, want, projection.Paired(op), "by pairs of steps")
	}
}

// The last rows of a layer in parts of K, beside whole ones, and all of them whole without scratch
// memory.
func TestLinearTail(t *testing.T) {
	tiling := [5]int{64, 64, 32, 32, 32}
	if testkit.Device(t).Adapter().Type == vk.TypeCPU { // whose subgroups have a quarter of a GPU's invocations
		tiling = [5]int{64, 64, 32, 16, 16}
	}
	// Two workgroups have four tiles; six are half a round too many.
	byMatrices(t, whole(11, projection.FormatFP8F32, 70, 1, 168, 2048), 2, tiled(tiling), func(t *testing.T, op *projection.Linear) {
		assert.Equal(t, 128, projection.WholeRows(op, 70), "rows whole")
	})
}

// proj_linear_tokens8to32 with two tiles a workgroup: even and odd numbers of tiles, of one group
// and of two.
func TestLinearTokens8to32(t *testing.T) {
	const f = projection.FormatFP8F32
	for _, h := range []projection.LinearHost{whole(12, f, 5, 1, 136, 640), whole(13, f, 7, 2, 72, 640)} {
		byMatrices(t, h, 1, projection.NewLinear, func(t *testing.T, op *projection.Linear) {
			if few, _ := projection.Lanes(op); few == 0 {
				t.Skip("matrices lie otherwise on this device")
			}
			require.Equal(t, 2, projection.Tiles8to32(op))
		})
	}
}

// proj_linear_tokens32to64 with its weights in one set of registers (up to 32 tokens, but for
// NVFP4) and in two, with odd and even numbers of rounds, in one part and several, in whole tiles
// and rounds and others, in passes of 16 tokens and more. Layers as small as these are otherwise
// proj_linear_tokens8to32's.
func TestLinearTokens32to64(t *testing.T) {
	dev := testkit.Device(t)
	for i, c := range []struct {
		f                    projection.Format
		tokens, groups, n, k int
		workgroups           int
	}{
		{projection.FormatFP8F32, 27, 1, 264, 1152, 2}, {projection.FormatFP8F32, 27, 1, 256, 1280, 2},
		{projection.FormatFP8F32, 31, 2, 200, 1152, 64}, {projection.FormatFP8F32, 40, 1, 264, 1152, 2},
		{projection.FormatFP8F32, 33, 2, 256, 1280, 64},
		{projection.FormatBF16, 27, 1, 128, 1000, 32}, {projection.FormatBF16, 32, 1, 128, 64, 2},
		{projection.FormatNVFP4, 13, 1, 128, 1568, 1}, {projection.FormatNVFP4, 27, 1, 128, 1568, 1},
		{projection.FormatNVFP4, 27, 1, 128, 2048, 16},
		{projection.FormatFP8x32, 27, 1, 264, 1120, 8},
	} {
		// Two sets of registers are 10 s to compile each: whole tiles of one format, and others of
		// another.
		if dev.Adapter().Type == vk.TypeCPU && (c.f == projection.FormatNVFP4 && c.k == 2048 || c.tokens == 40) {
			continue
		}
		h := whole(uint64(i), c.f, c.tokens, c.groups, c.n, c.k)
		byMatrices(t, h, c.workgroups, projection.NewLinear32to64, func(t *testing.T, op *projection.Linear) {
			if _, lanes := projection.Lanes(op); lanes == 0 {
				t.Skip("matrices lie otherwise on this device")
			}
			require.Equal(t, c.workgroups > 8, op.ScratchLen(c.tokens) > 0, "in parts")
		})
	}
}

// Whole tiles by pairs of steps: one tile and one pair, a last tile of tokens that begins
// earlier, groups, scales that change within a part, and parts of K.
func TestLinearWhole(t *testing.T) {
	dev := testkit.Device(t)
	for i, f := range weightFormats {
		if f == projection.FormatFP8 && dev.Adapter().Type == vk.TypeCPU || f != projection.FormatBF16 && testing.Short() {
			continue // ten seconds to compile, and FP8 with f32 scales has more to it
		}
		for _, s := range []struct{ tokens, groups, n, k int }{{32, 1, 32, 64}, {32, 1, 32, 1152}, {41, 2, 64, 384}, {75, 1, 96, 1152},
			{128, 2, 128, 128}, {200, 1, 384, 704}} {
			tiling := wholeTiling(dev, f, projection.ActivationBF16)
			blocks := f == projection.FormatFP8F32 || f == projection.FormatFP8
			if s.n%tiling[1] != 0 || s.tokens < tiling[0] || blocks && s.k%projection.ScaleBlock != 0 {
				continue // no whole tiles
			}
			byMatrices(t, whole(uint64(i), f, s.tokens, s.groups, s.n, s.k), 0, tiled(tiling), paired(true))
		}
	}
	byMatrices(t, whole(4, projection.FormatFP8x32, 40, 2, 64, 576), 8, tiled([5]int{16, 32, 32, 8, 8}), paired(true))
	if testing.Short() {
		return
	}
	for weights, act := range map[projection.Format]projection.ActivationFormat{
		projection.FormatFP8F32: projection.ActivationFP8, projection.FormatFP8: projection.ActivationFP8Packed,
	} { // of E4M3, whose scales change from block to block and token to token
		rng := rand.New(rand.NewPCG(9, uint64(act)))
		h := codesHost(rng, weights, act, 141, 2, 128, 512, 3, func() byte { return byte(small(weights, rng.IntN(7)-3)) })
		byMatrices(t, h, 0, tiled(wholeTiling(dev, weights, act)), paired(true))
	}
}

// wholeTiling is whole tiles that a device compiles soon enough. A subgroup has two tiles of
// tokens with bf16 weights and two of rows with NVFP4.
func wholeTiling(dev *vk.Device, f projection.Format, x projection.ActivationFormat) [5]int {
	switch {
	case dev.Adapter().Type != vk.TypeCPU:
		return [5]int{128, 128, 32, 64, 64}
	case f == projection.FormatNVFP4:
		return [5]int{16, 32, 32, 8, 16}
	case x != projection.ActivationBF16:
		return [5]int{16, 16, 32, 8, 8}
	case f == projection.FormatBF16:
		return [5]int{32, 32, 32, 16, 8}
	}
	return [5]int{16, 32, 32, 8, 8}
}

// Tiles and passes that a CPU does without.
func TestLinearBaseTiles(t *testing.T) {
	dev := testkit.Device(t)
	testkit.WithoutMatrices(t)
	h, hopper := whole(7, projection.FormatFP8F32, 256, 1, 264, 160), must[*tuning.Profile](t)(tuning.Named("hopper"))
	want, cfg := wanted(t, h), linearConfig(h, opkit.Base)
	cfg.Workgroups = 2
	op := must[*projection.Linear](t)(projection.NewLinearOf(dev, cfg, &hopper.Linear))
	exactly(t, dev, fewer(h, 7), want, op, 0)  // a pass of 8
	exactly(t, dev, fewer(h, 21), want, op, 0) // two of 16
	tiles := projection.OnlyTiles(op)
	require.Len(t, tiles, 3, "tiles")
	for _, x := range tiles {
		exactly(t, dev, fewer(h, 77), want, x, 0)
		exactly(t, dev, h, want, x, 0)
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
