package shaders

import (
	"io/fs"
	"maps"
	"strings"
	"sync"

	"github.com/vkmla/vkmla/internal/spirv"
)

// modules lists the kernels of modules, by their outputs in builds.txt, that are several or have
// another name. Other modules are one, of their own name.
var modules = map[string]string{
	"kv_insert":      "kv_insert kv_insert_da",
	"kv_gather":      "kv_gather kv_gather_da kv_gather_slots kv_gather_slots_da",
	"kv_gather_runs": "kv_gather_runs kv_gather_runs_da",
	"kv_compress": "kv_compress kv_compress_da kv_compress_save kv_compress_save_da" +
		" kv_save_state kv_save_state_da",

	"attn_decode":     "attn_decode attn_decode_da attn_decode_half attn_decode_dot",
	"attn_decode_cmb": "attn_decode_cmb attn_decode_float8_cmb",
	"attn_prefill":    "attn_prefill attn_prefill_da attn_prefill_half attn_prefill_dot",
	"attn_merge":      "attn_merge attn_merge_da",

	"idx_query_quant":     "idx_query_quant idx_query_quant_da",
	"idx_logits":          "idx_logits idx_logits_da idx_logits_half idx_logits_dot",
	"idx_logits_lanes_cm": "idx_logits_lanes_cm idx_logits_lanes_raw_cm",

	"proj_qkv_norm":     "proj_qkv_norm proj_qkv_norm_da proj_qkv_norm_lanes proj_qkv_norm_lanes_da",
	"proj_q_insert":     "proj_q_insert proj_q_insert_da proj_q_insert_lanes proj_q_insert_lanes_da",
	"proj_inverse_rope": "proj_inverse_rope proj_inverse_rope_da",
	"proj_inverse_rope_quant": "proj_inverse_rope_quant proj_inverse_rope_quant_da" +
		" proj_inverse_rope_quant_lanes proj_inverse_rope_quant_lanes_da",
	"proj_quantise": "proj_quantise proj_quantise_da",
	"proj_linear":   "proj_linear proj_linear_da proj_linear_half proj_linear_dot",
	"proj_linear_tokens1to8": "proj_linear_tokens1to8 proj_linear_tokens1to8_da proj_linear_tokens1to8_cm" +
		" proj_linear_tokens1to8_norm_da proj_linear_tokens1to8_norm_cm",
	"proj_linear_tokens8to16": "proj_linear_tokens8to16 proj_linear_tokens8to16_da" +
		" proj_linear_tokens8to16_half proj_linear_tokens8to16_dot",
	"proj_linear_chain":    "proj_linear_chain_da proj_linear_chain_cm",
	"proj_linear_codes_cm": "proj_linear_codes_cm proj_linear_placed_cm",

	"num_matrix_cm":   "num_layout_cm num_rows_cm num_codes_cm num_float8_cm",
	"num_matrix_cmb":  "num_layout_cmb num_rows_cmb",
	"num_elements_cm": "num_elements_cm num_subnormals_cm",
	"bench_read":      "bench_read bench_read_da",
}

// settle has the values of choices by their names in the shader.
type settle = map[string]uint32

// word is what a word of a kernel's name stands for: choices of its module that are not 0, of which
// a module need not have all, and features that it needs.
type word struct {
	choices  settle
	requires []string
}

var words = map[string]word{
	"da":         {settle{"ADDRESSED": 1}, deviceAddress},
	"half":       {settle{"ADDRESSED": 1, "HALVES": 1}, halves},
	"dot":        {settle{"ADDRESSED": 1, "HALVES": 1, "DOT2": 1}, dots},
	"cm":         {settle{"ADDRESSED": 1, "HALF_CODES": 1}, nil}, // requires has all of them
	"cmb":        {settle{"ADDRESSED": 1}, nil},
	"lanes":      {settle{"LANES_PASS": 1}, lanes},
	"norm":       {settle{"NORMS": 1}, nil},
	"raw":        {settle{"RAW_QUERIES": 1}, nil},
	"compress":   {settle{"COMPRESS": 1}, nil},
	"save":       {settle{"SAVE": 1}, nil},
	"slots":      {settle{"SLOTS": 1}, nil},
	"placed":     {settle{"PLACED": 1}, nil},
	"rows":       {settle{"PROBE": 1}, nil},
	"codes":      {settle{"PROBE": 2}, nil},
	"float8":     {settle{"PROBE": 3, "FLOAT8": 1}, nil},
	"subnormals": {settle{"SUBNORMALS": 1}, nil},
}

// wordsOf are the words of a kernel's name that stand for something.
func wordsOf(name string) (list []word) {
	for _, w := range strings.Split(name, "_") {
		if w, ok := words[w]; ok {
			list = append(list, w)
		}
	}
	return list
}

// moduleOf has the module of every kernel.
var moduleOf = func() map[string]string {
	of := map[string]string{}
	files, _ := fs.ReadDir(spv, "spv") // the root of an embedded tree
	for _, f := range files {
		module := strings.TrimSuffix(f.Name(), ".spv")
		kernels, ok := modules[module]
		if !ok {
			kernels = module
		}
		for _, k := range strings.Fields(kernels) {
			of[k] = module
		}
	}
	return of
}()

// settled keeps kernels.
var settled sync.Map

// module returns the module of a kernel, which is not to be changed.
func module(name string) ([]byte, error) {
	if code, ok := settled.Load(name); ok {
		return code.([]byte), nil
	}
	of, ok := moduleOf[name]
	if !ok {
		return nil, ErrUnknown
	}
	code, err := spv.ReadFile("spv/" + of + ".spv")
	if err != nil {
		return nil, err
	}
	choices := settle{}
	for _, w := range wordsOf(name) {
		maps.Copy(choices, w.choices)
	}
	if code, err = spirv.Settle(code, choices); err != nil {
		return nil, err
	}
	settled.Store(name, code)
	return code, nil
}
