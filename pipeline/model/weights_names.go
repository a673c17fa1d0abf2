package model

import (
	"slices"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/internal/safetensors"
)

// Checkpoints name an attention tensor in three ways:
//
//	layers.3.attn.wq_a.weight                   released
//	model.layers.3.attn.wq_a.weight             saved by transformers; kv_norm is norm there
//	model.layers.3.self_attn.q_a_proj.weight    by the names of transformers' modules
//
// Here a tensor is called by the first, without what stands in front of "attn.".

// modules are the names of modules in transformers, and the released ones.
// A name stands in front of those that it begins with.
var modules = [][2]string{
	{"compressor.indexer.scorer.weights_proj", "indexer.weights_proj"},
	{"compressor.indexer.weights_proj", "indexer.weights_proj"},
	{"compressor.indexer.q_b_proj", "indexer.wq_b"},
	{"compressor.indexer.position_bias", "indexer.compressor.ape"},
	{"compressor.indexer.kv_proj", "indexer.compressor.wkv"},
	{"compressor.indexer.gate_proj", "indexer.compressor.wgate"},
	{"compressor.indexer.kv_norm", "indexer.compressor.norm"},
	{"compressor.position_bias", "compressor.ape"},
	{"compressor.kv_proj", "compressor.wkv"},
	{"compressor.gate_proj", "compressor.wgate"},
	{"compressor.kv_norm", "compressor.norm"},
	{"q_a_proj", "wq_a"},
	{"q_a_norm", "q_norm"},
	{"q_b_proj", "wq_b"},
	{"kv_proj", "wkv"},
	{"norm", "kv_norm"},
	{"o_a_proj", "wo_a"},
	{"o_b_proj", "wo_b"},
	{"sinks", "attn_sink"},
}

// ignored are parts of names of tensors that some checkpoints have and nothing here needs: scales
// for activations (those of NVFP4 are read) and caches of 8 or 4 bits, tables that follow from the
// configuration, and a norm that no known model applies.
var ignored = []string{"input_scale", "input_global_scale", "q_scale", "k_scale", "v_scale", "kv_scale", "inv_freq", "k_norm"}

// attentionName takes a stored name apart. root is the prefix in front of "layers." and the name of
// the attention's module. ok is false for a tensor that does not belong to a layer's attention.
func attentionName(stored string) (root string, layer int, name string, ok bool) {
	rest, prefix := stored, ""
	if r, found := strings.CutPrefix(rest, "model."); found {
		rest, prefix = r, "model."
	}
	rest, found := strings.CutPrefix(rest, "layers.")
	if !found {
		return "", 0, "", false
	}
	number, rest, _ := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	if err != nil || layer < 0 || strconv.Itoa(layer) != number {
		return "", 0, "", false
	}
	module, name, found := strings.Cut(rest, ".")
	if !found || module != "attn" && module != "self_attn" {
		return "", 0, "", false
	}
	for _, m := range modules {
		if r, found := strings.CutPrefix(name, m[0]); found && (r == "" || r[0] == '.') {
			name = m[1] + r
			break
		}
	}
	return prefix + module, layer, name, true
}

// layerNames maps the names of a layer's attention tensors to those in the files.
type layerNames map[string]string

// layerNamesOf sorts the attention tensors of a model by layer.
func layerNamesOf(m *safetensors.Model) (map[int]layerNames, error) {
	all := map[int]layerNames{}
	first := ""
	for _, stored := range m.Names() {
		root, layer, name, ok := attentionName(stored)
		if !ok {
			continue
		}
		if first == "" {
			first = root
		}
		if root != first {
			return nil, &CheckpointError{m.File(stored), stored,
				"a tensor named in another way", "names with " + first + " throughout", nil}
		}
		l := all[layer]
		if l == nil {
			l = layerNames{}
			all[layer] = l
		}
		if other, twice := l[name]; twice {
			return nil, &CheckpointError{m.File(stored), stored, "the same tensor as " + other, "one of the two", nil}
		}
		l[name] = stored
	}
	return all, nil
}

// useless tells whether a tensor may be present without being read.
func useless(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if slices.Contains(ignored, part) {
			return true
		}
	}
	return false
}
