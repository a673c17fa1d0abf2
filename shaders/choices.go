package shaders

import (
	"sync"

	"github.com/vkmla/vkmla/internal/spirv"
)

// choice is a kernel that is compiled together with others, into one module: specialisation
// constants of the module tell them apart, and each keeps what it needs of it.
type choice struct {
	module    string // output name in builds.txt
	constants settle
}

// settle has the values of constants, by name in the shader.
type settle = map[string]uint32

// alone are kernels whose invocations pass nothing on inside subgroups.
var alone = settle{"LANES_PASS": 0, "SUBGROUP": 1}

// choices are the kernels of modules that several share. A kernel that is not among them has a
// module of its own name.
var choices = map[string]choice{
	"attn_decode_cmb":        {"attn_decode_cmb", settle{"FLOAT8": 0}},
	"attn_decode_float8_cmb": {"attn_decode_cmb", settle{"FLOAT8": 1}},

	"attn_decode_dot":   {"attn_decode_half", settle{"DOT2": 1}},
	"attn_decode_half":  {"attn_decode_half", settle{"DOT2": 0}},
	"attn_prefill_dot":  {"attn_prefill_half", settle{"DOT2": 1}},
	"attn_prefill_half": {"attn_prefill_half", settle{"DOT2": 0}},
	"idx_logits_dot":    {"idx_logits_half", settle{"DOT2": 1}},
	"idx_logits_half":   {"idx_logits_half", settle{"DOT2": 0}},
	"proj_linear_dot":   {"proj_linear_half", settle{"DOT2": 1}},
	"proj_linear_half":  {"proj_linear_half", settle{"DOT2": 0}},

	"proj_linear_tokens8to16_dot":  {"proj_linear_tokens8to16_half", settle{"DOT2": 1}},
	"proj_linear_tokens8to16_half": {"proj_linear_tokens8to16_half", settle{"DOT2": 0}},

	"proj_linear_tokens1to8_da":      {"proj_linear_tokens1to8_da", settle{"HALF_CODES": 0, "NORMS": 0}},
	"proj_linear_tokens1to8_cm":      {"proj_linear_tokens1to8_da", settle{"HALF_CODES": 1, "NORMS": 0}},
	"proj_linear_tokens1to8_norm_da": {"proj_linear_tokens1to8_da", settle{"HALF_CODES": 0, "NORMS": 1}},
	"proj_linear_tokens1to8_norm_cm": {"proj_linear_tokens1to8_da", settle{"HALF_CODES": 1, "NORMS": 1}},
	"proj_linear_chain_da":           {"proj_linear_chain_da", settle{"HALF_CODES": 0}},
	"proj_linear_chain_cm":           {"proj_linear_chain_da", settle{"HALF_CODES": 1}},
	"proj_linear_codes_cm":           {"proj_linear_codes_cm", settle{"PLACED": 0}},
	"proj_linear_placed_cm":          {"proj_linear_codes_cm", settle{"PLACED": 1}},

	"proj_q_insert":                    {"proj_q_insert", alone},
	"proj_q_insert_lanes":              {"proj_q_insert", settle{"LANES_PASS": 1}},
	"proj_q_insert_da":                 {"proj_q_insert_da", alone},
	"proj_q_insert_lanes_da":           {"proj_q_insert_da", settle{"LANES_PASS": 1}},
	"proj_qkv_norm":                    {"proj_qkv_norm", alone},
	"proj_qkv_norm_lanes":              {"proj_qkv_norm", settle{"LANES_PASS": 1}},
	"proj_qkv_norm_da":                 {"proj_qkv_norm_da", alone},
	"proj_qkv_norm_lanes_da":           {"proj_qkv_norm_da", settle{"LANES_PASS": 1}},
	"proj_inverse_rope_quant":          {"proj_inverse_rope_quant", alone},
	"proj_inverse_rope_quant_lanes":    {"proj_inverse_rope_quant", settle{"LANES_PASS": 1}},
	"proj_inverse_rope_quant_da":       {"proj_inverse_rope_quant_da", alone},
	"proj_inverse_rope_quant_lanes_da": {"proj_inverse_rope_quant_da", settle{"LANES_PASS": 1}},

	"num_layout_cm":  {"num_matrix_cm", settle{"PROBE": 0}},
	"num_layout_cmb": {"num_matrix_cmb", settle{"PROBE": 0}},
	"num_rows_cm":    {"num_matrix_cm", settle{"PROBE": 1}},
	"num_rows_cmb":   {"num_matrix_cmb", settle{"PROBE": 1}},
	"num_codes_cm":   {"num_matrix_cm", settle{"PROBE": 2}},
	"num_float8_cm":  {"num_matrix_cm", settle{"PROBE": 3}},

	"num_elements_cm":   {"num_elements_cm", settle{"SUBNORMALS": 0}},
	"num_subnormals_cm": {"num_elements_cm", settle{"SUBNORMALS": 1}},
}

// settled keeps the modules of choices, by kernel.
var settled sync.Map

// module returns the module of a kernel, which is not to be changed.
func module(name string) ([]byte, error) {
	c, shared := choices[name]
	if !shared {
		code, err := spv.ReadFile("spv/" + name + ".spv")
		if err != nil {
			return nil, ErrUnknown
		}
		return code, nil
	}
	if code, ok := settled.Load(name); ok {
		return code.([]byte), nil
	}
	code, err := spv.ReadFile("spv/" + c.module + ".spv")
	if err != nil {
		return nil, err
	}
	if code, err = spirv.Settle(code, c.constants); err != nil {
		return nil, err
	}
	settled.Store(name, code)
	return code, nil
}
