package pipeline

import (
	"fmt"

	"github.com/vkmla/vkmla/projection"
)

// OutputPath says how the attention's output, turned back, goes into wo_a. The numbers
// differ by the rounding of each of them to E4M3, up to one part in 16; see
// EngineOptions.Output.
//
// Sources: vLLM rocm_aiter_mla_sparse.py (bf16) and fused_inv_rope_fp8_quant.py with
// DeepGEMM's FP8 einsum, whose two recipes the two layouts of scales belong to.
type OutputPath int

const (
	// OutputBF16 rounds it to bf16; wo_a may be of any format.
	OutputBF16 OutputPath = iota
	// OutputFP8 quantises it to E4M3, with a scale for every 128 numbers that is a
	// power of two, kept as f32. wo_a has to be of FormatFP8, in blocks of 128.
	OutputFP8
	// OutputFP8Packed is the same with UE8M0 scales, four in a word.
	OutputFP8Packed
)

// String is "bf16", "fp8" or "fp8-packed".
func (p OutputPath) String() string {
	switch p {
	case OutputBF16:
		return "bf16"
	case OutputFP8:
		return "fp8"
	case OutputFP8Packed:
		return "fp8-packed"
	}
	return fmt.Sprintf("OutputPath(%d)", int(p))
}

// format is what wo_a multiplies with.
func (p OutputPath) format() projection.ActivationFormat {
	switch p {
	case OutputFP8:
		return projection.ActivationFP8
	case OutputFP8Packed:
		return projection.ActivationFP8Packed
	}
	return projection.ActivationBF16
}
