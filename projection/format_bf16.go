package projection

import (
	"encoding/binary"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
)

var formatBF16 = format{name: "bf16", codec: codecBF16, quad: 8, data: tensor.BF16, each: 1, alike: alikeLong, unroll: 1,
	special: numfmt.SpecialBF16,
	value: func(_ *format, h *LinearHost, row, k int) float64 {
		return float64(numfmt.BF16Decode(binary.LittleEndian.Uint16(h.Data[2*(row*h.K+k):])))
	}}
