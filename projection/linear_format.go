package projection

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

// WeightFormat says how the weights of a linear layer are stored.
type WeightFormat int

// Formats of weights.
const (
	WeightBF16        WeightFormat = iota + 1 // bf16
	WeightFP8                                 // E4M3 with one f32 scale for each block of 128 rows x 128 numbers
	WeightFP8UE8M0                            // E4M3 with one UE8M0 scale for each such block
	WeightNVFP4                               // E2M1, one E4M3 scale for each 16 numbers of a row, one f32 for each row
	WeightFP8Rows                             // E4M3 with one f32 scale for each row
	WeightFP8UE8M0x32                         // E4M3 with one UE8M0 scale for each block of 32 rows x 32 numbers
)

// weightFormat is what a format of weights is, as far as the host has to know. The shaders'
// part is in shaders/lib/linear.glsl.
type weightFormat struct {
	name  string
	codec int
	quad  int // weights in 16 bytes

	data                tensor.DType // of LinearWeights.Data
	each                int          // weights in an element of it
	scale               tensor.DType // of LinearWeights.Scale; 0: none
	scaleRows, scaleCut int          // rows and numbers of a row that share a scale
	rowScale            bool         // there is LinearWeights.RowScale

	span     int   // numbers of a row with one scale, which no step of a kernel with matrices crosses; 0: quads have their own
	alike    alike // which layers proj_linear_tokens1to8 divides by K alone
	overlaps bool  // proj_linear_tokens1to8 decodes while it loads: half the lanes suffice for one token
	twoSets  bool  // proj_linear_tokens32to64 needs two sets of registers, however few the tokens
	unroll   int   // eights of a quad that the longest pass of proj_linear_tokens8to16 multiplies without a loop; 2 gains 8 % with E4M3
}

// alike is a rule for layers that are to share a kernel.
type alike int

const (
	alikeNever alike = iota
	alikeLong        // those of long rows, where a division of their own gains little
	alikeAlways
)

// weightFormats has a row for each WeightFormat. A format is such a row and its decoding in the
// shaders.
var weightFormats = map[WeightFormat]weightFormat{
	WeightBF16: {name: "bf16", quad: 8, data: tensor.BF16, each: 1, alike: alikeLong, unroll: 1},
	WeightFP8: {name: "fp8", codec: 1, quad: 16, data: tensor.U8, each: 1, scale: tensor.F32, scaleRows: ScaleBlock, scaleCut: ScaleBlock,
		span: ScaleBlock, alike: alikeAlways, unroll: 2},
	WeightFP8UE8M0: {name: "fp8-ue8m0", codec: 1, quad: 16, data: tensor.U8, each: 1, scale: tensor.U8, scaleRows: ScaleBlock, scaleCut: ScaleBlock,
		span: ScaleBlock, alike: alikeAlways, unroll: 2},
	WeightNVFP4: {name: "nvfp4", codec: 2, quad: 32, data: tensor.U8, each: 2, scale: tensor.U8, scaleRows: 1, scaleCut: nvBlock, rowScale: true,
		overlaps: true, twoSets: true, unroll: 1},
	WeightFP8Rows: {name: "fp8-rows", codec: 1, quad: 16, data: tensor.U8, each: 1, rowScale: true, span: ScaleBlock, alike: alikeAlways, unroll: 2},
	WeightFP8UE8M0x32: {name: "fp8-ue8m0-32", codec: 1, quad: 16, data: tensor.U8, each: 1, scale: tensor.U8, scaleRows: smallBlock,
		scaleCut: smallBlock, alike: alikeAlways, unroll: 2},
}

// word is what the kernels know of a format, in bits: FORMAT of shaders/lib/formats.glsl.
func (f weightFormat) word() uint32 {
	block := cmp.Or(f.scaleCut, ScaleBlock)
	w := uint32(f.codec) | uint32(bits.Len(uint(f.quad/8))-1)<<4 | uint32(bits.Len(uint(block))-1)<<6
	rowwise := f.scaleRows == 1
	stepSums := f.codec == 1
	return w | opkit.Bit(10, stepSums) | opkit.Bit(11, rowwise) | opkit.Bit(12, f.scale != 0) | opkit.Bit(13, f.scale == tensor.F32) |
		opkit.Bit(14, f.rowScale) | opkit.Bit(15, f.overlaps)
}

// spans tells whether so many numbers have one scale, or scales of their own.
func (f weightFormat) spans(numbers int) bool { return f.span == 0 || numbers <= f.span }

// row returns the properties of a format.
func (f WeightFormat) row() weightFormat { return weightFormats[f] }

// String names the format.
func (f WeightFormat) String() string {
	if name := f.row().name; name != "" {
		return name
	}
	return fmt.Sprintf("format(%d)", int(f))
}

// Bytes are the bytes of rows x k weights without their scales.
func (f WeightFormat) Bytes(rows, k int) int { return rows * k / f.row().quad * 16 }

// ScaleBlock is the side of the square of FP8 weights that has one scale, but for
// WeightFP8UE8M0x32, and the length of the piece of E4M3 activations that has one.
const ScaleBlock = 128

const smallBlock = 32 // the side of WeightFP8UE8M0x32

// ActivationFormat says how the input of a linear layer is stored.
type ActivationFormat int

// Formats of activations.
const (
	ActivationBF16      ActivationFormat = iota // [T, G, K] bf16
	ActivationFP8                               // [G, T, K] E4M3 with f32 scales, all powers of two
	ActivationFP8Packed                         // [G, T, K] E4M3 with UE8M0 scales, four in a word
	ActivationNVFP4                             // [G, T, K/2] E2M1 with E4M3 scales; LinearWeights.RowScale has the input scale
	ActivationMXFP8                             // [G, T, K] E4M3 with a UE8M0 scale for each 32, four in a word
)

// activationFormat is what a format of activations is.
type activationFormat struct {
	name     string
	quad     int            // numbers in 16 bytes
	multiple int            // of which K is one, whatever the weights; 0: 1
	block    int            // numbers that have one element of LinearArgs.XScale; 0: none
	amaxOf   int            // numbers that share a scale
	least    float32        // of E4M3: the largest number of a block counts as at least this
	scales   []tensor.DType // that LinearArgs.XScale may have
	rows     bool           // XScale lies as X does, a row for each token: [G, T, K/block]; else [G, K/block, Ta]
	weights  []WeightFormat // that go with it; nil: all
	staged   bool           // only kernels without matrices that keep x decoded in shared memory take it
}

var activationFormats = map[ActivationFormat]activationFormat{
	ActivationBF16: {name: "bf16", quad: 8},
	ActivationFP8: {name: "fp8", quad: 16, multiple: ScaleBlock, block: ScaleBlock, amaxOf: ScaleBlock, least: numfmt.ActivationEps,
		scales: []tensor.DType{tensor.F32}, weights: fp8Weights},
	ActivationFP8Packed: {name: "fp8-packed", quad: 16, multiple: 4 * ScaleBlock, block: 4 * ScaleBlock, amaxOf: ScaleBlock,
		least: numfmt.ActivationEps, scales: []tensor.DType{tensor.I32, tensor.U32}, weights: fp8Weights},
	ActivationMXFP8: {name: "mxfp8", quad: 16, multiple: 4 * smallBlock, block: 4 * smallBlock, amaxOf: smallBlock,
		least: numfmt.KCacheEps, scales: []tensor.DType{tensor.I32, tensor.U32}, weights: []WeightFormat{WeightFP8UE8M0x32}},
	ActivationNVFP4: {name: "nvfp4", quad: 32, multiple: 4 * nvBlock, block: nvBlock, amaxOf: nvBlock,
		scales: []tensor.DType{tensor.U8}, rows: true, weights: []WeightFormat{WeightNVFP4}, staged: true},
}

var fp8Weights = []WeightFormat{WeightFP8, WeightFP8UE8M0, WeightFP8Rows}

// nvBlock is how many numbers of a row of NVFP4 have one scale.
const nvBlock = 16

// row returns the properties of a format.
func (f ActivationFormat) row() activationFormat { return activationFormats[f] }

// String names the format.
func (f ActivationFormat) String() string {
	if name := f.row().name; name != "" {
		return name
	}
	return fmt.Sprintf("format(%d)", int(f))
}

// checkFormats looks at the formats and what they ask of K.
func (cfg LinearConfig) checkFormats(op string) error {
	w, known := weightFormats[cfg.Weights]
	if !known {
		return pkg.Wrong(op, "Weights", cfg.Weights, "bf16, fp8, fp8-ue8m0, nvfp4, fp8-rows or fp8-ue8m0-32")
	}
	x, known := activationFormats[cfg.Activations]
	if !known {
		return pkg.Wrong(op, "Activations", cfg.Activations, "bf16, fp8, fp8-packed, nvfp4 or mxfp8")
	}
	if x.weights != nil && !slices.Contains(x.weights, cfg.Weights) {
		return pkg.Wrong(op, "Activations", cfg.Activations, "others, for weights of %v", cfg.Weights)
	}
	if multiple := max(w.quad, x.multiple); cfg.K < multiple || cfg.K%multiple != 0 {
		return pkg.Wrong(op, "K", cfg.K, "a multiple of %d, for activations of %v and weights of %v",
			multiple, cfg.Activations, cfg.Weights)
	}
	return nil
}

// check looks at the shapes of weights of rows x k.
func (f WeightFormat) check(op string, w LinearWeights, rows, k int) error {
	is := f.row()
	part := func(arg string, t tensor.Tensor, there bool, dt tensor.DType, dims ...int) error {
		if there {
			return pkg.Check(op, arg, t, dt, dims...)
		}
		if !t.IsZero() {
			return pkg.Wrong(op, arg, t, "absent, for weights of %v", f)
		}
		return nil
	}
	if err := pkg.Check(op, "W.Data", w.Data, is.data, rows, k/is.each); err != nil {
		return err
	}
	scales := []int{0, 0}
	if is.scale != 0 {
		scales = []int{opkit.CeilDiv(rows, is.scaleRows), opkit.CeilDiv(k, is.scaleCut)}
	}
	return opkit.First(
		part("W.Scale", w.Scale, is.scale != 0, is.scale, scales...),
		part("W.RowScale", w.RowScale, is.rowScale, tensor.F32, rows))
}
