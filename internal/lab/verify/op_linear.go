package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

func init() {
	Register(Op{
		Name: "linear", Class: ClassTolerance, Variants: opkit.Builds("proj_linear"),
		Of: Of{"projection.Linear", "proj_linear proj_linear_tokens1to8 proj_linear_tokens8to16 proj_linear_tokens8to32 " +
			"proj_linear_tokens32to64 proj_linear_cm proj_linear_whole proj_linear_codes proj_linear_sum",
			"wq_a|wkv, wq_b, wo_a, wo_b, compressor.wkv|wgate, indexer.wq_b, indexer.weights_proj, indexer.wk, " +
				"indexer.compressor.wkv|wgate"},
		NaN:    Spoilt{Input: "x"},
		Random: randomLinear, Ref: refBy(readLinear, refLinear), Bind: bindBy(readLinear, bindLinear), Lacks: lacksLinear,
		Compare: compareBy(ClassTolerance, readLinear, compareLinear),
		Timing:  Timing{Suite: "linear", Sizes: linearSizes, Sample: sampleLinear},
	})
}

var weightFormats = []projection.Format{
	projection.FormatBF16, projection.FormatFP8F32, projection.FormatFP8, projection.FormatNVFP4}

// blockFormats are those of GGUF's blocks.
var blockFormats = []projection.Format{projection.FormatQ8_0, projection.FormatQ4K}

// smallBlock is the side of FormatFP8x32.
const smallBlock = 32

// lacksLinear: activations of four bits have no kernel with matrices or pairs of halves.
func lacksLinear(c Case, variant string) bool {
	return projection.ActivationFormat(c.Input().IntOr("activations", 0)) == projection.ActivationNVFP4 &&
		variant != opkit.Base && variant != opkit.DA
}

// linearInput is a layer.
type linearInput struct {
	projection.LinearHost
	out                       tensor.DType
	column, width, workgroups int
}

func readLinear(c Case) (x linearInput, err error) {
	in := c.Input()
	x.T, x.Groups, x.N, x.K = in.Int("tokens"), in.IntOr("groups", 1), in.Int("n"), in.Int("k")
	x.Weights, x.Activations = projection.Format(in.Int("weights")), projection.ActivationFormat(in.IntOr("activations", 0))
	x.column, x.width, x.workgroups = in.IntOr("column", 0), in.IntOr("width", x.Groups*x.N), in.IntOr("workgroups", 0)
	x.out = tensor.BF16
	if in.IntOr("out_f32", 0) != 0 {
		x.out = tensor.F32
	}
	x.X, x.XScale, x.Data, x.Scale = c.In["x"].Data, c.In["x_scale"].Data, c.In["w"].Data, c.In["w_scale"].Data
	if a := c.In["x_scale"]; !a.IsZero() && x.Activations != projection.ActivationNVFP4 {
		x.ScalePitch = a.Dim(2)
	}
	x.RowScale = c.In["row_scale"].F32()
	return x, in.Err()
}

// config returns the configuration of a case's layer.
func (x linearInput) config(b Build) projection.LinearConfig {
	return projection.LinearConfig{N: x.N, K: x.K, Groups: x.Groups, Weights: x.Weights, Activations: x.Activations,
		Out: x.out, MaxTokens: x.T, Workgroups: x.workgroups, Variant: b.Variant}
}

// refLinear leaves the poison of a Rig in columns that the layer does not write.
func refLinear(x linearInput) (Arrays, error) {
	sums := make([]float64, x.T*x.Groups*x.N)
	if err := projection.LinearRef(x.LinearHost, sums); err != nil {
		return nil, err
	}
	y := vectors.Filled(poisonFloat, stored[x.out], x.T, x.width)
	for i, v := range sums {
		at := i/(x.Groups*x.N)*x.width + x.column + i%(x.Groups*x.N)
		if x.out == tensor.F32 {
			binary.LittleEndian.PutUint32(y.Data[4*at:], math.Float32bits(float32(v)))
		} else {
			binary.LittleEndian.PutUint16(y.Data[2*at:], numfmt.BF16Encode(float32(v)))
		}
	}
	return Arrays{"y": y}, nil
}

func bindLinear(b Build, x linearInput) (Bound, error) {
	op, err := projection.NewLinear(b.Dev, x.config(b))
	return bound(op, err, func(r *Rig) Launch {
		a := x.place(r, op)
		return launch(op, a, outs{"y": a.Out})
	})
}

// place returns the operands of a layer.
func (x linearInput) place(r *Rig, op *projection.Linear) projection.LinearArgs {
	a := LinearArgs(r, x.LinearHost)
	a.Out, a.OutColumn = r.SharedOut(x.out, x.T, x.width), x.column
	if n := op.ScratchLen(x.T); n > 0 {
		a.Scratch = r.SharedOut(tensor.F32, n)
	}
	return a
}

// LinearArgs returns the operands of a layer.
func LinearArgs(r *Rig, h projection.LinearHost) (a projection.LinearArgs) {
	in := func(put func(Array, tensor.DType) tensor.Tensor, dt tensor.DType, data []byte, shape ...int) tensor.Tensor {
		if data == nil {
			return tensor.Tensor{}
		}
		return put(Array{Type: stored[dt], Shape: shape, Data: data}, dt)
	}
	is := h.Weights.Shapes(h.Groups*h.N, h.K)
	a.W.Data, a.W.Scale = in(r.In, is.Data.DType, h.Data, is.Data.Shape...), in(r.In, is.Scale.DType, h.Scale, is.Scale.Shape...)
	if h.RowScale != nil {
		a.W.RowScale = r.In(vectors.FromF32(h.RowScale, len(h.RowScale)), tensor.F32)
	}
	switch h.Activations {
	case projection.ActivationBF16:
		a.X = in(r.Shared, tensor.BF16, h.X, h.T, h.Groups, h.K)
		return a
	case projection.ActivationNVFP4:
		a.X = in(r.Shared, tensor.U8, h.X, h.Groups, h.T, h.K/2)
		a.XScale = in(r.Shared, tensor.U8, h.XScale, h.Groups, h.T, h.K/16)
		return a
	}
	a.X = in(r.Shared, tensor.U8, h.X, h.Groups, h.T, h.K)
	dt := tensor.I32 // four scales each
	if h.Activations == projection.ActivationFP8 {
		dt = tensor.F32
	}
	a.XScale = in(r.Shared, dt, h.XScale, h.Groups, len(h.XScale)/4/h.Groups/h.ScalePitch, h.ScalePitch)
	return a
}

// compareLinear bounds the error of every sum by what its terms allow. With
// A = sum_k |x w|:
//
//	sums     K additions in f32, each rounded or cut off: at most K * 2^-23 * A, in any order
//	scales   FP8 with scales that are no powers of two: sums so far are multiplied by the ratio
//	         of two fractions where a block of 128 begins, at most 4 roundings of 2^-23:
//	         ceil(K/128) * 2^-21 * A
//	steps    f16 elements come in steps of 2^-24, FP8 weights in that of twice the largest scale
//	         S of the layer: 2^-25 * (sum_k |w| + 2*S * sum_k |x|); for bf16 weights S is 1/2
//	elements weights that kernels with matrices round to them: 2^-8 * A
//	result   half a unit of bf16 in what is wanted and in what is got: 2^-7 of it; of f32 2^-23
//
// Beyond that, no error may show in the whole: calc_diff as for other sums in f32, or
// as roundings to bf16, independent of each other, make it: a third of (2^-8)^2, half of it for
// each of two. Weights that are rounded to elements add half of it times sum (x w)^2 over the terms
// of all sums, relative to sum y^2; and as few of n sums are rounded to another number than wanted,
// four standard deviations more, each sqrt(8/n) of it.
func compareLinear(cmp *Comparison, _ Case, h linearInput, got, want Arrays) {
	if !cmp.Same("y", got["y"], want["y"]) {
		return
	}
	a, b := got["y"].Float64s(), want["y"].Float64s()
	m := newLinearMagnitudes(h.LinearHost)
	worst, at, bound, stray := 0.0, 0, 1.0, 0
	terms, sums := 0.0, 0.0 // of squares
	rows := h.Groups * h.N
	var x, y []float64
	for i := range b {
		t, n := i/h.width, i%h.width-h.column
		if n < 0 || n >= rows {
			if !math.IsNaN(a[i]) {
				stray++
			}
			continue
		}
		x, y = append(x, a[i]), append(y, b[i])
		limit, squares := m.bound(t, n)
		terms, sums = terms+squares, sums+b[i]*b[i]
		result := 0x1p-7
		if h.out == tensor.F32 {
			result = 0x1p-23
		}
		limit += result * (math.Abs(b[i]) + limit)
		if d := math.Abs(a[i] - b[i]); !(d/limit <= worst) && !(d == 0) {
			worst, at, bound = d/limit, i, limit
		}
	}
	cmp.Criterion(worst <= 1, worst*bound, bound, fmt.Sprintf("y: error %.3g of %.3g at %s: got %.6g, want %.6g",
		worst*bound, bound, position(at, want["y"].Shape), a[at], b[at]))
	var dot, norm float64
	for i := range x {
		dot, norm = dot+x[i]*y[i], norm+x[i]*x[i]+y[i]*y[i]
	}
	limit := 5e-6
	if h.Weights.Rounded() && sums > 0 {
		limit = (limit + 0x1p-16/6*terms/sums) * (1 + 4*math.Sqrt(8/float64(len(x))))
	}
	cmp.Criterion(diff(dot, norm) < limit, diff(dot, norm), limit, fmt.Sprintf("y: calc_diff %.3g of %.3g", diff(dot, norm), limit))
	if stray > 0 {
		cmp.Fail("y: %d elements beside the layer's columns were written", stray)
	}
}

// linearMagnitudes are absolute values of a case's numbers.
type linearMagnitudes struct {
	h        projection.LinearHost
	w, x     [][]float64 // of each row; of each token and group
	wSum     []float64
	xSum     []float64
	relative float64 // error of a product
	largest  float64 // scale
}

func newLinearMagnitudes(h projection.LinearHost) linearMagnitudes {
	m := linearMagnitudes{h: h, relative: float64(h.K) * 0x1p-23, largest: 0.5}
	for row := range h.Groups * h.N {
		v, sum := make([]float64, h.K), 0.0
		for k := range v {
			v[k] = math.Abs(h.Weight(row, k))
			sum += v[k]
		}
		m.w, m.wSum = append(m.w, v), append(m.wSum, sum)
	}
	for i := range h.T * h.Groups {
		v, sum := make([]float64, h.K), 0.0
		for k := range v {
			v[k] = math.Abs(h.Activation(i/h.Groups, i%h.Groups, k))
			sum += v[k]
		}
		m.x, m.xSum = append(m.x, v), append(m.xSum, sum)
	}
	switch scale := h.Weights.Shapes(1, h.K).Scale; {
	case h.Weights.ScaleRows() > 1: // in blocks
		m.largest = slices.Max(blockScales(h, scale.DType))
	case h.Weights.Rounded() || scale.Shape == nil && len(h.RowScale) > 0:
		m.largest = float64(slices.Max(h.RowScale))
	}
	if h.Weights.Rounded() {
		m.relative += 0x1p-8
	}
	if h.Weights == projection.FormatFP8F32 {
		m.relative += float64((h.K+projection.ScaleBlock-1)/projection.ScaleBlock) * 0x1p-21
	}
	return m
}

// blockScales are the magnitudes of all scales of blocks.
func blockScales(h projection.LinearHost, dt tensor.DType) (list []float64) {
	for i := 0; i < len(h.Scale); i += dt.Size() {
		if dt == tensor.U8 {
			list = append(list, float64(numfmt.UE8M0Scale(h.Scale[i])))
		} else {
			list = append(list, math.Abs(float64(math.Float32frombits(binary.LittleEndian.Uint32(h.Scale[i:])))))
		}
	}
	return list
}

// bound returns what column n of a token may be wrong by before it is rounded, and the sum of its
// squared terms.
func (m *linearMagnitudes) bound(t, n int) (most, squares float64) {
	i, sum := t*m.h.Groups+n/m.h.N, 0.0
	x := m.x[i]
	for k, v := range m.w[n] {
		term := v * x[k]
		sum, squares = sum+term, squares+term*term
	}
	return m.relative*sum + 0x1p-25*(m.wSum[n]+2*m.largest*m.xSum[i]), squares
}

// linearShape is a random case without its formats.
type linearShape struct {
	about         string
	tokens        int
	groups, n, k  int
	column, spare int // columns before and after those of the layer
	f32           bool
	weights       []projection.Format // nil: all
	activations   projection.ActivationFormat
	codes         bool // random codes instead of quantised normal numbers
	faint         bool // weights of subnormal codes alone
	wide          bool // FP8 scales of very different size
	power         int  // of two, of FP8 scales
	workgroups    int  // that fill the device; 0 as it is: few make the largest tiles serve small layers
}

func randomLinear(seed uint64) []Case {
	fp8, fp4, fp8x32 := weightFormats[1:3], weightFormats[3:], []projection.Format{projection.FormatFP8x32}
	var cases []Case
	for i, s := range []linearShape{
		{about: "one token, least sizes", tokens: 1, groups: 1, n: 8, k: 32},
		{about: "one token", tokens: 1, groups: 1, n: 321 * 8, k: 512, f32: true},
		{about: "one token, long rows", tokens: 1, groups: 1, n: 64, k: 4096, codes: true, f32: true},
		{about: "two tokens, odd sizes", tokens: 2, groups: 1, n: 136, k: 61 * 32, codes: true},
		{about: "three tokens beside other columns", tokens: 3, groups: 1, n: 264, k: 288, column: 16, spare: 8, wide: true},
		{about: "four tokens in groups", tokens: 4, groups: 3, n: 72, k: 384, f32: true},
		{about: "five tokens", tokens: 5, groups: 1, n: 192, k: 160, f32: true},
		{about: "eight tokens, many rows", tokens: 8, groups: 1, n: 2048, k: 96, codes: true},
		{about: "eight tokens, long rows", tokens: 8, groups: 1, n: 40, k: 2048, weights: fp8},
		{about: "17 tokens, few outputs", tokens: 17, groups: 1, n: 64, k: 2048, f32: true},
		{about: "17 tokens, many blocks", tokens: 17, groups: 1, n: 328, k: 1056, wide: true},
		{about: "31 tokens in groups of odd size beside other columns", tokens: 31, groups: 2, n: 200, k: 224, column: 8, spare: 24},
		{about: "61 tokens, every code", tokens: 61, groups: 1, n: 256, k: 512, codes: true, f32: true},
		{about: "69 tokens in groups", tokens: 69, groups: 5, n: 40, k: 192, codes: true, wide: true},
		{about: "130 tokens, one group of blocks", tokens: 130, groups: 1, n: 136, k: 32, column: 8},
		{about: "321 tokens", tokens: 321, groups: 1, n: 264, k: 416},
		{about: "321 tokens in groups", tokens: 321, groups: 2, n: 128, k: 128, f32: true},
		{about: "150 tokens, large tiles", tokens: 150, groups: 1, n: 256, k: 704, wide: true, workgroups: 1},
		{about: "FP8 activations, large tiles", tokens: 131, groups: 2, n: 128, k: 384, weights: fp8[:1],
			activations: projection.ActivationFP8, wide: true, workgroups: 1},
		{about: "packed FP8 activations, large tiles", tokens: 140, groups: 1, n: 128, k: 512, weights: fp8[1:],
			activations: projection.ActivationFP8Packed, workgroups: 1},
		{about: "FP8 activations, one token", tokens: 1, groups: 2, n: 128, k: 512, weights: fp8, activations: projection.ActivationFP8},
		{about: "FP8 activations", tokens: 61, groups: 2, n: 136, k: 640, weights: fp8, activations: projection.ActivationFP8, wide: true},
		{about: "packed FP8 activations, two tokens", tokens: 2, groups: 3, n: 72, k: 1024, weights: fp8,
			activations: projection.ActivationFP8Packed, codes: true},
		{about: "subnormal codes, three tokens", tokens: 3, groups: 1, n: 72, k: 384, weights: weightFormats[1:], faint: true},
		{about: "subnormal codes", tokens: 40, groups: 1, n: 136, k: 384, weights: weightFormats[1:], faint: true},
		{about: "packed FP8 activations", tokens: 69, groups: 2, n: 128, k: 512, weights: fp8,
			activations: projection.ActivationFP8Packed, f32: true},
		{about: "NVFP4 activations, one token", tokens: 1, groups: 1, n: 72, k: 1088, weights: fp4,
			activations: projection.ActivationNVFP4},
		{about: "NVFP4 activations in groups beside other columns", tokens: 13, groups: 3, n: 40, k: 320, weights: fp4,
			activations: projection.ActivationNVFP4, codes: true, column: 8, spare: 16},
		{about: "NVFP4 activations, many tokens", tokens: 131, groups: 2, n: 136, k: 192, weights: fp4,
			activations: projection.ActivationNVFP4, f32: true},
		{about: "small blocks, least sizes", tokens: 1, groups: 1, n: 8, k: 16, weights: fp8x32},
		{about: "small blocks, two tokens", tokens: 2, groups: 1, n: 136, k: 61 * 16, weights: fp8x32, codes: true, wide: true},
		{about: "small blocks, 13 tokens in groups beside other columns", tokens: 13, groups: 2, n: 104, k: 464, weights: fp8x32,
			wide: true, column: 8, spare: 16},
		{about: "small blocks, 45 tokens", tokens: 45, groups: 1, n: 200, k: 1056, weights: fp8x32, wide: true, f32: true},
		{about: "small blocks, subnormal codes", tokens: 40, groups: 1, n: 136, k: 384, weights: fp8x32, faint: true},
		{about: "small blocks, large tiles", tokens: 150, groups: 1, n: 256, k: 704, weights: fp8x32, wide: true, workgroups: 1},
		{about: "blocks, least sizes", tokens: 1, groups: 1, n: 8, k: 256, weights: blockFormats},
		{about: "blocks, one token, long rows", tokens: 1, groups: 1, n: 136, k: 4096, weights: blockFormats, f32: true},
		{about: "blocks, two tokens in groups", tokens: 2, groups: 3, n: 72, k: 768, weights: blockFormats, wide: true},
		{about: "blocks, five tokens beside other columns", tokens: 5, groups: 1, n: 264, k: 1280, weights: blockFormats, wide: true,
			column: 16, spare: 8},
		{about: "blocks, 13 tokens", tokens: 13, groups: 1, n: 328, k: 2304, weights: blockFormats, wide: true, f32: true},
		{about: "blocks, 31 tokens in groups", tokens: 31, groups: 2, n: 200, k: 512, weights: blockFormats, wide: true},
		{about: "blocks, 61 tokens", tokens: 61, groups: 1, n: 256, k: 768, weights: blockFormats, f32: true},
		{about: "blocks, 150 tokens, large tiles", tokens: 150, groups: 1, n: 256, k: 768, weights: blockFormats, wide: true,
			workgroups: 1},
		{about: "blocks, 321 tokens in groups", tokens: 321, groups: 2, n: 128, k: 256, weights: blockFormats},
		{about: "MXFP8, one token", tokens: 1, groups: 1, n: 136, k: 640, weights: fp8x32, activations: projection.ActivationMXFP8},
		{about: "MXFP8 in groups", tokens: 21, groups: 2, n: 72, k: 384, weights: fp8x32,
			activations: projection.ActivationMXFP8, wide: true},
		{about: "MXFP8, large tiles", tokens: 140, groups: 1, n: 128, k: 512, weights: fp8x32,
			activations: projection.ActivationMXFP8, f32: true, workgroups: 1},
		{about: "scales near the least that f32 has", tokens: 20, groups: 1, n: 136, k: 256, weights: fp8, power: -100, f32: true},
		{about: "one token, scales near the largest", tokens: 1, groups: 1, n: 136, k: 256, weights: fp8, power: 90, f32: true},
		{about: "scales near the largest that f32 has", tokens: 21, groups: 1, n: 136, k: 256, weights: fp8, power: 90},
		{about: "FP8 activations, a scale a row", tokens: 20, groups: 2, n: 72, k: 512, activations: projection.ActivationFP8,
			weights: []projection.Format{projection.FormatFP8Rows}, f32: true},
	} {
		formats := s.weights
		if formats == nil {
			formats = weightFormats
			if i%4 == 1 { // it differs from the others at the end of a sum only
				formats = append(slices.Clone(formats), projection.FormatFP8Rows)
			}
		}
		for _, f := range formats {
			cases = append(cases, randomLinearCase(rand.New(rand.NewPCG(seed, uint64(i))), s, f))
		}
	}
	return cases
}

func randomLinearCase(rng *rand.Rand, s linearShape, f projection.Format) Case {
	rows := s.groups * s.n
	c := Case{
		Name: fmt.Sprintf("%v_t%d_g%d_n%d_k%d_x%v", f, s.tokens, s.groups, s.n, s.k, s.activations), About: s.about,
		Params: map[string]any{"tokens": s.tokens, "groups": s.groups, "n": s.n, "k": s.k, "weights": int(f),
			"activations": int(s.activations),
			"column":      s.column, "width": s.column + rows + s.spare, "out_f32": 0, "workgroups": s.workgroups},
		In: Arrays{},
	}
	if s.f32 {
		c.Params["out_f32"] = 1
	}
	randomActivations(rng, s, c.In)
	randomWeights(rng, s, f, c.In)
	if s.faint {
		mask := byte(0x87) // E4M3 without exponent
		if f == projection.FormatNVFP4 {
			mask = 0x99 // E2M1, two of them
		}
		for i := range c.In["w"].Data {
			c.In["w"].Data[i] &= mask
		}
	}
	return c
}

func randomActivations(rng *rand.Rand, s linearShape, in Arrays) {
	n := s.tokens * s.groups * s.k
	if s.activations == projection.ActivationBF16 {
		in["x"] = normalBF16(rng, 1, s.tokens, s.groups, s.k)
		return
	}
	if s.activations == projection.ActivationNVFP4 {
		codes, scales := make([]byte, n/2), make([]byte, n/16)
		FillBytes(rng, codes)
		fillScales(rng, scales, s.codes)
		in["x"], in["x_scale"] = vectors.FromU8(codes, s.groups, s.tokens, s.k/2), vectors.FromU8(scales, s.groups, s.tokens, s.k/16)
		return
	}
	codes, pitch, blocks := make([]byte, n), (s.tokens+3)/4*4, s.k/projection.ScaleBlock
	if s.activations == projection.ActivationMXFP8 {
		blocks = s.k / smallBlock
	}
	fillE4M3(rng, codes)
	in["x"] = vectors.FromU8(codes, s.groups, s.tokens, s.k)
	bytes := make([]byte, s.groups*blocks*pitch)
	for i := range bytes {
		bytes[i] = byte(112 + rng.IntN(10))
	}
	if s.activations != projection.ActivationFP8 {
		words := make([]int32, len(bytes)/4)
		for i := range words {
			words[i] = int32(binary.LittleEndian.Uint32(bytes[4*i:]))
		}
		in["x_scale"] = vectors.FromI32(words, s.groups, blocks/4, pitch)
		return
	}
	scales := make([]float32, len(bytes))
	for i, b := range bytes {
		scales[i] = numfmt.UE8M0Scale(b)
	}
	in["x_scale"] = vectors.FromF32(scales, s.groups, blocks, pitch)
}

// fillCodes makes codes of E4M3 that are numbers: of quantised normal numbers, or any.
func fillCodes(rng *rand.Rand, codes []byte, any bool) {
	if any {
		fillE4M3(rng, codes)
		return
	}
	v := make([]float32, len(codes))
	FillNormal(rng, v)
	for i := range codes {
		codes[i] = numfmt.E4M3Encode(128 * v[i])
	}
}

// fillScales is fillCodes without signs.
func fillScales(rng *rand.Rand, scales []byte, any bool) {
	fillCodes(rng, scales, any)
	for i := range scales {
		scales[i] &= 0x7F
	}
}

func randomWeights(rng *rand.Rand, s linearShape, f projection.Format, in Arrays) {
	rows := s.groups * s.n
	if f.BlockValues() > 0 {
		randomBlockWeights(rng, s, f, in)
		return
	}
	switch f {
	case projection.FormatBF16:
		in["w"] = normalBF16(rng, 0.02, rows, s.k)
	case projection.FormatNVFP4:
		data, scale, rowScale := make([]byte, rows*s.k/2), make([]byte, rows*s.k/16), make([]float32, rows)
		FillBytes(rng, data)
		fillScales(rng, scale, s.codes)
		for i := range rowScale {
			rowScale[i] = float32(0x1p-12 * (1 + rng.Float64()))
		}
		in["w"], in["w_scale"] = vectors.FromU8(data, rows, s.k/2), vectors.FromU8(scale, rows, s.k/16)
		in["row_scale"] = vectors.FromF32(rowScale, rows)
	default:
		data := make([]byte, rows*s.k)
		fillCodes(rng, data, s.codes)
		in["w"] = vectors.FromU8(data, rows, s.k)
		if f == projection.FormatFP8Rows {
			scales := make([]float32, rows)
			for i := range scales {
				scales[i] = float32(0x1p-13 * (1 + rng.Float64()))
			}
			in["row_scale"] = vectors.FromF32(scales, rows)
			return
		}
		side := projection.ScaleBlock
		if f == projection.FormatFP8x32 {
			side = smallBlock
		}
		n, k := (rows+side-1)/side, (s.k+side-1)/side
		bytes, scales := make([]byte, n*k), make([]float32, n*k)
		for i := range bytes {
			bytes[i] = byte(114 + s.power)
			if s.wide {
				bytes[i] = byte(90 + rng.IntN(50))
			}
			scales[i] = numfmt.UE8M0Scale(bytes[i]) * float32(1+rng.Float64())
		}
		if f == projection.FormatFP8F32 {
			in["w_scale"] = vectors.FromF32(scales, n, k)
		} else {
			in["w_scale"] = vectors.FromU8(bytes, n, k)
		}
	}
}

// blockHead are the bytes of a block of GGUF, and its f16 scales, two bytes each from the first on.
var blockHead = map[projection.Format]struct{ bytes, scales int }{
	projection.FormatQ8_0: {34, 1}, projection.FormatQ4K: {144, 2}}

// randomBlockWeights makes weights of blocks with random codes. Of wide ones scales are 0,
// subnormal and huge, too.
func randomBlockWeights(rng *rand.Rand, s linearShape, f projection.Format, in Arrays) {
	rows, head := s.groups*s.n, blockHead[f]
	is := f.Shapes(1, s.k)
	var data, scales []byte
	factors := make([]float32, rows)
	blocks := make([]byte, s.k/f.BlockValues()*head.bytes)
	for row := range rows {
		FillBytes(rng, blocks)
		for b := 0; b < len(blocks); b += head.bytes {
			for i := range head.scales {
				scale := uint16(0x1400 + rng.UintN(0x800)) // about 2^-10
				switch pick := rng.UintN(16); {
				case s.wide && pick == 0:
					scale = 0
				case s.wide && pick == 1:
					scale = uint16(rng.UintN(0x400))
				case s.wide && pick == 2 && row%5 == 1:
					scale = uint16(0x7000 + rng.UintN(0xC00))
				}
				binary.LittleEndian.PutUint16(blocks[b+2*i:], scale)
			}
		}
		d, c := make([]byte, is.Data.Bytes()), make([]byte, is.Scale.Bytes())
		factors[row], _ = f.Repack(d, c, blocks) // their sizes fit
		data, scales = append(data, d...), append(scales, c...)
	}
	typed := func(t tensor.Tensor, bytes []byte) Array {
		of := map[tensor.DType]vectors.Type{tensor.U8: vectors.U8, tensor.F16: vectors.U16, tensor.U32: vectors.U32}[t.DType]
		return Array{Type: of, Shape: []int{rows, t.Shape[1]}, Data: bytes}
	}
	in["w"], in["w_scale"], in["row_scale"] = typed(is.Data, data), typed(is.Scale, scales), vectors.FromF32(factors, rows)
}
