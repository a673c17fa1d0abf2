package projection

import (
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
)

// nvBlock is the number of numbers of a row of NVFP4 that share a scale.
const nvBlock = 16

var formatNVFP4 = format{name: "nvfp4", codec: codecNVFP4, quad: 32, data: tensor.U8, each: 2,
	scale: tensor.U8, scaleRows: 1, scaleCut: nvBlock, rowScale: true,
	activations: []ActivationFormat{ActivationNVFP4}, overlaps: true, twoSets: true, unroll: 1,
	value: func(_ *format, h *LinearHost, row, k int) float64 { return nvfp4(h.Data, h.Scale, row*h.K+k) }}

// nvfp4 is number i of E2M1 codes with a scale for every 16.
func nvfp4(data, scale []byte, i int) float64 {
	code, odd := numfmt.E2M1Unpack(data[i/2])
	if i%2 == 1 {
		code = odd
	}
	return float64(numfmt.E2M1Decode(code)) * float64(numfmt.E4M3Decode(scale[i/nvBlock]))
}
