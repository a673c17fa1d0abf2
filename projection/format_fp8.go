package projection

import (
	"encoding/binary"
	"math"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

// ScaleBlock is the side of the square of FP8 weights that has one scale, but for FormatFP8x32, and
// the length of the piece of E4M3 activations that has one.
const ScaleBlock = 128

const smallBlock = 32 // the side of FormatFP8x32

// formatFP8 is E4M3 with UE8M0 scales of blocks, which the other formats of E4M3 vary.
var formatFP8 = format{name: "fp8", codec: codecFP8, quad: 16, data: tensor.U8, each: 1,
	scale: tensor.U8, scaleRows: ScaleBlock, scaleCut: ScaleBlock, stepSums: true,
	activations: []ActivationFormat{ActivationFP8, ActivationFP8Packed},
	span:        ScaleBlock, alike: alikeAlways, unroll: 2, value: fp8Value, special: numfmt.SpecialE4M3}

var formatFP8F32 = formatFP8.with(func(f *format) { f.name, f.scale = "fp8-f32", tensor.F32 })

var formatFP8Rows = formatFP8.with(func(f *format) { f.name, f.scale, f.scaleRows, f.rowScale = "fp8-rows", 0, 1, true })

var formatFP8x32 = formatFP8.with(func(f *format) {
	f.name, f.scaleRows, f.scaleCut, f.span = "fp8-32", smallBlock, smallBlock, 0
	f.activations = []ActivationFormat{ActivationMXFP8}
})

func (f format) with(change func(f *format)) format {
	change(&f)
	return f
}

func fp8Value(f *format, h *LinearHost, row, k int) float64 {
	code := float64(numfmt.E4M3Decode(h.Data[row*h.K+k]))
	if f.scale == 0 {
		return code
	}
	b := row/f.scaleRows*opkit.CeilDiv(h.K, f.scaleCut) + k/f.scaleCut
	if f.scale == tensor.U8 {
		return code * float64(numfmt.UE8M0Scale(h.Scale[b]))
	}
	return code * float64(math.Float32frombits(binary.LittleEndian.Uint32(h.Scale[4*b:])))
}
