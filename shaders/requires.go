package shaders

import "slices"

// The features of a kernel whose page pools are reached by device address.
var deviceAddress = []string{"bufferDeviceAddress", "shaderInt64"}

// The features of a kernel with cooperative matrices of f16 or bf16, which is built for one
// subgroup size, with every subgroup full. One that reaches its memory by address needs more.
var (
	matrixUnits = []string{
		"cooperativeMatrix", "vulkanMemoryModel", "shaderFloat16", "subgroupSizeControl", "computeFullSubgroups"}
	matrixUnitsF16  = append(slices.Clone(matrixUnits), "coopmat.f16.f32")
	matrixUnitsBF16 = append(slices.Clone(matrixUnits),
		"coopmat.bf16.f32", "shaderBFloat16Type", "shaderBFloat16CooperativeMatrix")

	// Of a kernel with cooperative matrices of E4M3.
	matrixCodes = []string{"coopmat.e4m3.f32", "shaderFloat8", "shaderFloat8CooperativeMatrix", "shaderInt8"}

	matrixF16  = slices.Concat(deviceAddress, matrixUnitsF16)
	matrixBF16 = slices.Concat(deviceAddress, matrixUnitsBF16)
)

// The features of a kernel whose invocations pass numbers on inside subgroups of a known
// size.
var lanes = []string{"subgroupShuffle", "subgroupSizeControl", "computeFullSubgroups"}

// The features of a kernel without matrices that multiplies pairs of halves, by multiply-adds and
// by dot products.
var (
	halves = append(slices.Clone(deviceAddress), "shaderFloat16")
	dots   = append(slices.Clone(halves), "shaderMixedFloatDotProductFloat16AccFloat32")
)

// The features of an attention kernel whose lanes exchange numbers.
var laneFeatures = []string{"subgroupShuffle", "subgroupBallot"}

// requires has the device features of kernels of which the words of their names do not say all. A
// test compares both with the capabilities in the SPIR-V.
var requires = map[string][]string{
	"attn_decode_cm":                 append(slices.Clone(matrixF16), "shaderInt16"),
	"attn_decode_cmb":                append(slices.Clone(matrixBF16), "shaderInt16"),
	"attn_decode_float8_cmb":         append(slices.Clone(matrixBF16), "shaderInt16", "shaderInt8", "shaderFloat8"),
	"attn_decode_lanes_cm":           slices.Concat(matrixF16, laneFeatures, []string{"shaderInt16"}),
	"attn_decode_lanes_cmb":          slices.Concat(matrixBF16, laneFeatures, []string{"shaderInt16"}),
	"attn_prefill_cm":                matrixF16,
	"attn_prefill_cmb":               append(slices.Clone(matrixBF16), "shaderInt16"),
	"attn_prefill_lanes_cm":          slices.Concat(matrixF16, laneFeatures),
	"attn_prefill_lanes_cmb":         slices.Concat(matrixBF16, laneFeatures),
	"idx_logits_cm":                  append(slices.Clone(matrixF16), "subgroupShuffle"),
	"idx_logits_codes_cm":            append(slices.Concat(deviceAddress, matrixUnits, matrixCodes), "subgroupShuffle"),
	"idx_logits_lanes_cm":            append(slices.Clone(matrixF16), "subgroupShuffle", "subgroupArithmetic"),
	"idx_logits_lanes_raw_cm":        append(slices.Clone(matrixF16), "subgroupShuffle", "subgroupArithmetic"),
	"idx_logits_prompt_cm":           append(slices.Clone(matrixF16), "subgroupShuffle", "subgroupArithmetic"),
	"idx_topk_tiles_da":              slices.Concat(lanes, deviceAddress),
	"num_rows_cm":                    matrixUnitsF16,
	"num_rows_cmb":                   append(slices.Clone(matrixUnitsBF16), "shaderInt16"),
	"num_codes_cm":                   slices.Concat(matrixUnits, matrixCodes),
	"num_float8_cm":                  slices.Concat(matrixUnits, matrixCodes),
	"num_layout_cm":                  matrixUnitsF16,
	"num_layout_cmb":                 matrixUnitsBF16,
	"proj_linear_tokens1to8_cm":      slices.Concat(deviceAddress, []string{"shaderFloat16"}),
	"proj_linear_tokens1to8_norm_cm": slices.Concat(deviceAddress, []string{"shaderFloat16"}),
	"proj_linear_chain_cm":           slices.Concat(deviceAddress, []string{"shaderFloat16"}),
	"proj_linear_tokens32to64_cm":    append(slices.Clone(matrixF16), "shaderInt16"),
	"proj_linear_tokens32to64_cmb":   append(slices.Clone(matrixBF16), "shaderInt16"),
	"proj_linear_tokens8to32_cm":     append(slices.Clone(matrixF16), "shaderInt16"),
	"proj_linear_tokens8to32_cmb":    append(slices.Clone(matrixBF16), "shaderInt16"),
	"proj_linear_cm":                 matrixF16,
	"proj_linear_cmb":                append(slices.Clone(matrixBF16), "shaderInt16"),
	"proj_linear_codes_cm":           slices.Concat(deviceAddress, matrixUnits, matrixCodes),
	"proj_linear_placed_cm":          matrixF16,
	"proj_linear_whole_cm":           append(slices.Clone(matrixF16), "shaderInt16"),
	"proj_linear_whole_cmb":          append(slices.Clone(matrixBF16), "shaderInt16"),
	"num_elements_cm":                {"shaderFloat16"},
	"num_subnormals_cm":              {"shaderFloat16"},
	"num_elements_cmb":               {"shaderFloat16"},

	"bench_matrix_cm": {"cooperativeMatrix", "coopmat.f16.f32", "shaderFloat16", "vulkanMemoryModel"},
	"bench_matrix_cmb": {"cooperativeMatrix", "coopmat.bf16.f32", "shaderBFloat16Type", "shaderBFloat16CooperativeMatrix",
		"shaderFloat16", "vulkanMemoryModel"},
}
