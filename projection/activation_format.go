package projection

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
)

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

// activationFormat describes a format of activations.
type activationFormat struct {
	name     string
	quad     int            // numbers in 16 bytes
	multiple int            // K is a multiple of this, whatever the weights; 0: 1
	block    int            // numbers that have one element of LinearArgs.XScale; 0: none
	amaxOf   int            // numbers that share a scale
	least    float32        // of E4M3: the largest number of a block counts as at least this
	scales   []tensor.DType // that LinearArgs.XScale may have
	rows     bool           // XScale lies as X does, a row for each token: [G, T, K/block]; else [G, K/block, Ta]
	staged   bool           // only kernels without matrices that keep x decoded in shared memory take it
}

var activationFormats = map[ActivationFormat]activationFormat{
	ActivationBF16: {name: "bf16", quad: 8},
	ActivationFP8: {name: "fp8", quad: 16, multiple: ScaleBlock, block: ScaleBlock, amaxOf: ScaleBlock, least: numfmt.ActivationEps,
		scales: []tensor.DType{tensor.F32}},
	ActivationFP8Packed: {name: "fp8-packed", quad: 16, multiple: 4 * ScaleBlock, block: 4 * ScaleBlock, amaxOf: ScaleBlock,
		least: numfmt.ActivationEps, scales: []tensor.DType{tensor.I32, tensor.U32}},
	ActivationMXFP8: {name: "mxfp8", quad: 16, multiple: 4 * smallBlock, block: 4 * smallBlock, amaxOf: smallBlock,
		least: numfmt.KCacheEps, scales: []tensor.DType{tensor.I32, tensor.U32}},
	ActivationNVFP4: {name: "nvfp4", quad: 32, multiple: 4 * nvBlock, block: nvBlock, amaxOf: nvBlock,
		scales: []tensor.DType{tensor.U8}, rows: true, staged: true},
}

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
	if !cfg.Weights.Known() {
		return pkg.Wrong(op, "Weights", cfg.Weights, "%s", strings.Join(formatNames(), ", "))
	}
	w := cfg.Weights.row()
	x, known := activationFormats[cfg.Activations]
	if !known {
		return pkg.Wrong(op, "Activations", cfg.Activations, "bf16, fp8, fp8-packed, nvfp4 or mxfp8")
	}
	if cfg.Activations != ActivationBF16 && !slices.Contains(w.activations, cfg.Activations) {
		return pkg.Wrong(op, "Activations", cfg.Activations, "others, for weights of %v", cfg.Weights)
	}
	if multiple := max(w.multiple(), x.multiple); cfg.K < multiple || cfg.K%multiple != 0 {
		return pkg.Wrong(op, "K", cfg.K, "a multiple of %d, for activations of %v and weights of %v",
			multiple, cfg.Activations, cfg.Weights)
	}
	return nil
}
