package projection

import (
	"fmt"
	"math/bits"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

// Format says how the weights of a linear layer are stored: a row of formats, which stands in the
// Go file named after it, and a file of shaders/lib.
type Format uint8

// Formats of weights.
const (
	FormatBF16    Format = iota + 1 // bf16
	FormatFP8F32                    // E4M3 with one f32 scale for each block of 128 rows x 128 numbers
	FormatFP8                       // E4M3 with one UE8M0 scale for each such block
	FormatNVFP4                     // E2M1, one E4M3 scale for each 16 numbers of a row, one f32 for each row
	FormatFP8Rows                   // E4M3 with one f32 scale for each row
	FormatFP8x32                    // E4M3 with one UE8M0 scale for each block of 32 rows x 32 numbers
	FormatQ8_0                      // int8, one f16 scale for each 32 numbers of a row, one f32 for each row: of GGUF's Q8_0
	FormatQ4K                       // codes of 4 bits, scales and minima of 6 for each 32 numbers of a row: of GGUF's Q4_K
)

// formats has a row for each Format.
var formats = [...]format{FormatBF16: formatBF16, FormatFP8F32: formatFP8F32, FormatFP8: formatFP8, FormatNVFP4: formatNVFP4,
	FormatFP8Rows: formatFP8Rows, FormatFP8x32: formatFP8x32, FormatQ8_0: formatQ8_0, FormatQ4K: formatQ4K}

// codec is a file shaders/lib/format_*.glsl, by its number in formats.glsl.
type codec uint32

const (
	codecBF16 codec = iota
	codecFP8
	codecNVFP4
	codecQ8_0
	codecQ4K
)

// format describes a format of weights to the host and the kernels.
type format struct {
	name  string
	codec codec
	quad  int // weights in 16 bytes

	data                tensor.DType // of LinearWeights.Data
	each                int          // weights in an element of it
	scale               tensor.DType // of LinearWeights.Scale; 0: none
	scaleRows, scaleCut int          // rows and numbers of a row that share a scale
	rowScale            bool         // there is LinearWeights.RowScale
	stepSums            bool         // rows of a tile share scales: kernels sum up a step, then multiply by its scale

	rounded bool // elements of matrices and pairs of halves are weights rounded to their type

	activations []ActivationFormat // with fewer bits that go with it, the usual first

	span     int   // numbers of a row with one scale, which no step of a kernel with matrices crosses; 0: quads have their own
	alike    alike // which layers proj_linear_tokens1to8 divides by K alone
	overlaps bool  // proj_linear_tokens1to8 decodes while it loads: half the lanes suffice for one token
	twoSets  bool  // proj_linear_tokens32to64 needs two sets of registers, however few the tokens
	unroll   int   // eights of a quad that the longest pass of proj_linear_tokens8to16 multiplies without a loop

	// value is the definition: number k of a row, without RowScale.
	value func(f *format, h *LinearHost, row, k int) float64

	special numfmt.Special // elements of Data that are infinite or no number; zero: there are none

	// A format of GGUF's blocks has their name, size and numbers. repack brings the blocks of a row
	// to the row's part of Data and Scale, and returns that of RowScale.
	blocks                  string
	blockBytes, blockValues int
	repack                  func(data, scales, blocks []byte) float32
}

// multiple returns the number that K is a multiple of.
func (f *format) multiple() int { return max(f.quad, f.blockValues) }

// alike is a rule for layers that are to share a kernel.
type alike int

const (
	alikeNever alike = iota
	alikeLong        // those of long rows, where a division of their own gains little
	alikeAlways
)

// word encodes what the kernels know of a format: FORMAT of shaders/lib/formats.glsl.
func (f *format) word() uint32 {
	log2 := func(n int) uint32 { return uint32(bits.Len(uint(max(n, 1))) - 1) }
	return uint32(f.codec) | log2(f.quad/8)<<4 | log2(f.scaleCut)<<6 | opkit.Bit(10, f.stepSums) |
		opkit.Bit(11, f.scale != 0 && !f.stepSums) | opkit.Bit(12, f.scale != 0) | opkit.Bit(13, f.scale == tensor.F32) |
		opkit.Bit(14, f.rowScale) | opkit.Bit(15, f.overlaps)
}

// spans reports whether `numbers` numbers of a row have one scale, or scales of their own.
func (f *format) spans(numbers int) bool { return f.span == 0 || numbers <= f.span }

// Known reports whether f is one of the formats.
func (f Format) Known() bool { return int(f) < len(formats) && formats[f].name != "" }

// row returns the row of a format, an empty one if there is none.
func (f Format) row() *format {
	if !f.Known() {
		return &formats[0]
	}
	return &formats[f]
}

// String names the format.
func (f Format) String() string {
	if f.Known() {
		return f.row().name
	}
	return fmt.Sprintf("format(%d)", uint8(f))
}

func formatNames() (names []string) {
	for f := range formats {
		if Format(f).Known() {
			names = append(names, formats[f].name)
		}
	}
	return names
}

// bytes returns the bytes of rows x k weights without their scales.
func (f Format) bytes(rows, k int) int { return rows * k / f.row().quad * 16 }

// Shapes returns the types and shapes of rows x k weights, as tensors without memory. What the
// format does not have is the zero Tensor.
func (f Format) Shapes(rows, k int) (w LinearWeights) {
	is := f.row()
	w.Data = tensor.Tensor{DType: is.data, Shape: []int{rows, k / is.each}}
	if is.scale != 0 {
		w.Scale = tensor.Tensor{DType: is.scale, Shape: []int{opkit.CeilDiv(rows, is.scaleRows), opkit.CeilDiv(k, is.scaleCut)}}
	}
	if is.rowScale {
		w.RowScale = tensor.Tensor{DType: tensor.F32, Shape: []int{rows}}
	}
	return w
}

// ScaleRows returns how many rows share a scale, 1 where none do.
func (f Format) ScaleRows() int { return max(f.row().scaleRows, 1) }

// Special returns which elements of LinearWeights.Data are infinite or no number; zero for a format
// that has none.
func (f Format) Special() numfmt.Special { return f.row().special }

// Rounded reports whether kernels with matrices or pairs of halves round weights to these.
func (f Format) Rounded() bool { return f.row().rounded }

// FormatOfBlocks returns the format whose weights GGUF keeps in blocks of a name; 0 if there is
// none.
func FormatOfBlocks(name string) Format {
	for f := range formats {
		if name != "" && formats[f].blocks == name {
			return Format(f)
		}
	}
	return 0
}

// BlockValues returns how many numbers a block of GGUF has; 0 for a format without blocks.
func (f Format) BlockValues() int { return f.row().blockValues }

// Repack takes the blocks of a row as GGUF has them, and writes the row's bytes of
// LinearWeights.Data and Scale, each unless it is nil. It returns the row's RowScale.
//
// Errors: vk.ErrArgument for a format without blocks, and slices that do not have the sizes that
// follow from each other.
func (f Format) Repack(data, scales, blocks []byte) (float32, error) {
	const op = "repack"
	is := f.row()
	if is.repack == nil {
		return 0, pkg.Wrong(op, "format", f, "one of GGUF's blocks")
	}
	n := len(blocks) / is.blockBytes
	w := f.Shapes(1, n*is.blockValues)
	fits := func(dst []byte, t tensor.Tensor) bool { return dst == nil || uint64(len(dst)) == t.Bytes() }
	if n*is.blockBytes != len(blocks) || !fits(data, w.Data) || !fits(scales, w.Scale) {
		return 0, pkg.Wrong(op, "blocks, data, scales", []int{len(blocks), len(data), len(scales)},
			"whole blocks of %d bytes, and the bytes of as many numbers", is.blockBytes)
	}
	return is.repack(data, scales, blocks), nil
}

// Activations lists the formats of activations with fewer bits than bf16 that go with the weights,
// the usual one first.
func (f Format) Activations() []ActivationFormat { return f.row().activations }

// check looks at the shapes of weights of rows x k.
func (f Format) check(op string, w LinearWeights, rows, k int) error {
	part := func(arg string, t, want tensor.Tensor) error {
		if want.Shape != nil {
			return pkg.Check(op, arg, t, want.DType, want.Shape...)
		}
		if !t.IsZero() {
			return pkg.Wrong(op, arg, t, "absent, for weights of %v", f)
		}
		return nil
	}
	is := f.Shapes(rows, k)
	return opkit.FirstError(part("W.Data", w.Data, is.Data), part("W.Scale", w.Scale, is.Scale),
		part("W.RowScale", w.RowScale, is.RowScale))
}
