package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/internal/safetensors"
)

// A tensor of attention is stored as PREFIX STACK.NUMBER.MODULE.NAME, such as
//
//	layers.3.attn.wq_a.weight                          released
//	model.layers.3.self_attn.q_a_proj.weight           by the names of transformers' modules
//	model.language_model.layers.3.self_attn.wq_a.weight
//
// Here it is called by NAME as released checkpoints have it.

// prefixes may stand in front of the stack: those of text models, and of text models inside others.
var prefixes = []string{"", "model.", "language_model.", "language_model.model.", "model.language_model."}

// stacks are the lists that layers are numbered in. Layers of stackDrafts predict ahead; some
// converters number them on after the others.
const (
	stackMain   = "layers."
	stackDrafts = "mtp."
)

// spellings has a row for each name that is spelled in more than one way: as released, by the names
// of transformers' modules, then as converters leave it that rename only parts of a name.
var spellings = [][]string{
	{"wq_a", "q_a_proj"},
	{"q_norm", "q_a_norm"},
	{"wq_b", "q_b_proj"},
	{"wkv", "kv_proj"},
	{"kv_norm", "norm"},
	{"wo_a", "o_a_proj"},
	{"wo_b", "o_b_proj"},
	{"attn_sink", "sinks"},
	{"compressor.ape", "compressor.position_bias"},
	{"compressor.wkv", "compressor.kv_proj"},
	{"compressor.wgate", "compressor.gate_proj"},
	{"compressor.norm", "compressor.kv_norm"},
	{"indexer.wq_b", "compressor.indexer.q_b_proj", "compressor.indexer.wq_b", "indexer.q_b_proj"},
	{"indexer.weights_proj", "compressor.indexer.scorer.weights_proj", "compressor.indexer.weights_proj", "indexer.scorer.weights_proj"},
	{"indexer.compressor.ape", "compressor.indexer.position_bias", "compressor.indexer.ape",
		"compressor.indexer.compressor.ape", "compressor.indexer.compressor.position_bias", "indexer.compressor.position_bias"},
	{"indexer.compressor.wkv", "compressor.indexer.kv_proj", "compressor.indexer.wkv",
		"compressor.indexer.compressor.wkv", "compressor.indexer.compressor.kv_proj", "indexer.compressor.kv_proj"},
	{"indexer.compressor.wgate", "compressor.indexer.gate_proj", "compressor.indexer.wgate",
		"compressor.indexer.compressor.wgate", "compressor.indexer.compressor.gate_proj", "indexer.compressor.gate_proj"},
	{"indexer.compressor.norm", "compressor.indexer.kv_norm", "compressor.indexer.norm",
		"compressor.indexer.compressor.norm", "compressor.indexer.compressor.kv_norm", "indexer.compressor.kv_norm"},
}

// ignored are parts of names of tensors that some checkpoints have and nothing here needs: scales
// for activations (those of NVFP4 are read) and caches of 8 or 4 bits, tables that follow from the
// configuration, and a norm that no known model applies.
var ignored = []string{"input_scale", "input_global_scale", "q_scale", "k_scale", "v_scale", "kv_scale", "inv_freq", "k_norm"}

// storedName is a stored name taken apart.
type storedName struct {
	prefix, stack string
	number        int
	module        string
	name          string // as released
}

// root returns the common beginning of all names of a stack.
func (s storedName) root() string { return s.prefix + s.stack + "N." + s.module }

// attentionName takes a stored name apart. ok is false for a tensor that does not belong to a
// layer's attention.
func attentionName(stored string) (s storedName, ok bool) {
	s, ok = layerName(stored)
	s.name = releasedName(s.name)
	return s, ok && (s.module == "attn" || s.module == "self_attn")
}

// draftProjection is the module that only the first layer of a DSpark block has: what makes its
// input of the target layers' states.
const draftProjection = "main_proj"

// layerName takes the name of a tensor of a layer apart, with what follows the module as stored.
func layerName(stored string) (s storedName, ok bool) {
	at := len(stored)
	for _, stack := range []string{stackMain, stackDrafts} {
		if i := strings.Index(stored, stack); i >= 0 && i < at && slices.Contains(prefixes, stored[:i]) {
			s.stack, at = stack, i
		}
	}
	if s.stack == "" {
		return s, false
	}
	number, rest, _ := strings.Cut(stored[at+len(s.stack):], ".")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || strconv.Itoa(n) != number {
		return s, false
	}
	s.prefix, s.number = stored[:at], n
	s.module, s.name, ok = strings.Cut(rest, ".")
	return s, ok
}

// releasedName returns the released spelling of a name. The rest of the name, after the part that
// is spelled, stays.
func releasedName(name string) string {
	for _, row := range spellings {
		for _, other := range row[1:] {
			if r, found := strings.CutPrefix(name, other); found && (r == "" || r[0] == '.') {
				return row[0] + r
			}
		}
	}
	return name
}

// attentionPart selects the tensors of a checkpoint that are looked at: attention's, those that
// tell layers that draft from others, and the names of those for images. The largest model has
// 4,000 such tensors.
var attentionPart = safetensors.Part{Keep: func(name string) bool {
	s, ok := layerName(name)
	return ok && (s.module == "attn" || s.module == "self_attn" || s.module == draftProjection) || forImages(name)
}, Most: 1 << 15}

// forImages reports whether a stored tensor is of the parts that turn images into tokens.
func forImages(stored string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool {
		name, ok := strings.CutPrefix(stored, p)
		return ok && (strings.HasPrefix(name, "vision.") || strings.HasPrefix(name, "aligner."))
	})
}

// layerNames maps the names of a layer's attention tensors to those in the files.
type layerNames map[string]string

// layerNamesOf sorts the attention tensors of a model by layer. A stack has to be named in one way,
// and a tensor once.
func layerNamesOf(m source, cfg *Config) (map[int]layerNames, error) {
	all, roots, main := map[int]layerNames{}, map[string]string{}, cfg.mainLayers()
	for _, stored := range m.Names() {
		s, ok := m.attentionName(stored)
		if !ok {
			continue
		}
		layer := s.number
		if s.stack == stackDrafts {
			layer += main
		}
		if layer >= len(cfg.Layers) && s.stack == stackDrafts {
			continue // it is never asked for, so it may have any name
		}
		root := s.root()
		if first, seen := roots[s.stack]; seen && first != root {
			return nil, &CheckpointError{m.File(stored), stored,
				"a tensor named in another way", "names with " + first + " throughout", nil}
		}
		roots[s.stack] = root
		l := all[layer]
		if l == nil {
			l = layerNames{}
			all[layer] = l
		}
		if other, twice := l[s.name]; twice {
			return nil, &CheckpointError{m.File(stored), stored, "the same tensor as " + other, "one of the two", nil}
		}
		l[s.name] = stored
	}
	return all, nil
}

// releasedRoot returns the beginning of the names of a layer's attention in released checkpoints.
func (c *Config) releasedRoot(layer int) string {
	if main := c.mainLayers(); layer >= main {
		return fmt.Sprintf("%s%d.attn.", stackDrafts, layer-main)
	}
	return fmt.Sprintf("%s%d.attn.", stackMain, layer)
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

// checkDrafts demands that layers that draft are a DSpark block where their tensors are one's, of
// as many target layers as the configuration names.
func checkDrafts(m source, c *Config) error {
	for _, stored := range m.Names() {
		s, ok := layerName(stored)
		layer := s.number
		if s.stack == stackDrafts {
			layer += c.mainLayers()
		}
		if !ok || s.module != draftProjection || layer >= len(c.Layers) {
			continue
		}
		if !c.Layers[layer].Block {
			return &CheckpointError{File: m.File(stored), Tensor: stored, Got: "a tensor of a DSpark block",
				Want: "dspark_block_size in " + configName + ", or layers of MTP"}
		}
		if s.name != "weight" || len(c.DraftTargets) == 0 {
			continue
		}
		t, err := m.Tensor(stored)
		if err != nil {
			return &CheckpointError{File: m.File(stored), Tensor: stored, err: err}
		}
		want := []int{c.Hidden, len(c.DraftTargets) * c.Hidden}
		if (isFloats(t) || t.DType == safetensors.F8E4M3 || blockFormat(t) != nil) && !slices.Equal(t.Shape, want) {
			return &CheckpointError{File: m.File(stored), Tensor: stored, Got: t.String(),
				Want: fmt.Sprintf("shape %v, of the %d layers of dspark_target_layer_ids", want, len(c.DraftTargets))}
		}
	}
	return nil
}
