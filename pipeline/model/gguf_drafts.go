package model

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/safetensors"
)

// draftLayout is a way to keep a DSpark block of DeepSeek-V4 in a GGUF file of its own. Embedding
// and head are the model's. A layer's tensors have the names that a model's have; here they are
// called mtp.K. and the others as in released checkpoints, which is how ds4 has them.
type draftLayout struct {
	arch           string // general.architecture
	layers         string // key: how many
	block, targets string // keys
	first          int    // what targets call the state after layer 0
	stack          string // in front of a layer's number
	names          func(last string) gguf.Names
}

// draftLayouts are those of ds4's DSpark support files and of llama.cpp. llama.cpp counts inputs of
// layers, and a state after a layer is the input of the next one.
//
// Sources: antirez/ds4; pull requests 25784 and 26452 of llama.cpp.
var draftLayouts = []draftLayout{
	{arch: "deepseek4-dspark", layers: "dspark.stage_count", block: "dspark.block_size", targets: "dspark.target_layer_ids",
		stack: stackDrafts, names: func(string) gguf.Names { return nil }},
	{arch: "dflash", layers: "dflash.block_count", block: "dflash.block_size", targets: "dflash.target_layers", first: 1,
		stack: ggufStack, names: func(last string) gguf.Names {
			return gguf.Names{
				{"fc.", stackDrafts + "0.main_proj."},
				{"enc.output_norm.", stackDrafts + "0.main_norm."},
				{"output_norm.", last + "norm."},
				{"output_hc_fn.", last + "hc_head_fn."},
				{"output_hc_base.", last + "hc_head_base."},
				{"output_hc_scale.", last + "hc_head_scale."},
				{"markov_w1.", last + "markov_head.markov_w1."},
				{"markov_w2.", last + "markov_head.markov_w2."},
				{"conf_proj.", last + "confidence_head.proj."},
			}
		}},
}

// isDraftFile reports whether files of an architecture are drafts.
func isDraftFile(arch string) bool {
	return slices.ContainsFunc(draftLayouts, func(l draftLayout) bool { return l.arch == arch })
}

// draftTensor matches the names of a draft block.
var draftTensor = regexp.MustCompile(`^mtp\.(\d+)\.(?:attn_|ffn_norm\.|ffn_gate_inp\.|exp_probs_b\.|` +
	`ffn_(?:gate|up|down)_(?:exps|shexp)\.|` +
	`hc_(?:attn|ffn|head)_(?:fn|base|scale)\.|main_(?:proj|norm)\.|norm\.|markov_head\.markov_w[12]\.|confidence_head\.proj\.)`)

// draftFile is a draft block in a GGUF file, or several parts.
type draftFile struct {
	*gguf.Model
	draftLayout
	folder string // of it, from the model's
	file   string // or the first part
	count  int    // layers
	stored map[string]string
}

// openDrafts opens the GGUF file with the draft block for a model.
func openDrafts(dir, path string) (*draftFile, error) {
	file, err := ggufOf(path)
	if err == nil && file == "" {
		err = badArgument(opOpen, "Drafts", strconv.Quote(filepath.Base(path)), "a GGUF file with a draft block, or a folder with one")
	}
	if err != nil {
		return nil, err
	}
	m, err := mapGGUF(file)
	if err != nil {
		return nil, err
	}
	d := &draftFile{Model: m, file: filepath.Base(file)}
	r := ggufReader{keys: m.Keys}
	if err = r.guard(func() { d.open(&r) }); err == nil {
		d.folder, err = between(dir, file)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return d, nil
}

// between returns the way from a model's folder to that of another file.
func between(model, file string) (string, error) {
	if of, err := ggufOf(model); err == nil && of != "" {
		model = filepath.Dir(of)
	}
	from, err := filepath.Abs(model)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return "", err
	}
	return filepath.Rel(from, to)
}

// open reads which layout it is, and the names.
func (d *draftFile) open(r *ggufReader) {
	arch := ggufText(r, "general.architecture")
	at := slices.IndexFunc(draftLayouts, func(l draftLayout) bool { return l.arch == arch })
	switch {
	case r.err != nil:
		return
	case arch == architecture:
		r.bad("general.architecture", arch+", a model", "the draft block of a model, deepseek4-dspark or dflash")
		return
	case at < 0:
		r.err = &ForeignError{d.file, "general.architecture", fmt.Sprintf("a file of architecture %.60q", arch)}
		return
	}
	d.draftLayout = draftLayouts[at]
	if _, there := d.Model.Tensor("markov_w1.weight"); d.arch == "dflash" && !there {
		r.err = &ForeignError{d.file, "markov_w1.weight", "a draft model other than DSpark's, without that tensor"}
	}
	d.count = r.within(d.layers, 1, maxLayers)
	if key, want, got := d.Differs([]gguf.Number{{Key: "dspark.n_layers", Want: float64(d.count)}}); key != "" {
		r.bad(key, got, fmt.Sprintf("what %s says, %v", d.layers, want))
	}
	d.stored = map[string]string{}
	root := d.names(d.last())
	for _, stored := range d.Model.Names() {
		name, ok := root.Other(stored, 0)
		if rest, layers := strings.CutPrefix(stored, d.stack); layers {
			name, ok = stackDrafts+rest, true
		}
		part := draftTensor.FindStringSubmatch(name)
		if part != nil {
			n, err := strconv.Atoi(part[1])
			ok = ok && err == nil && n < d.count && strconv.Itoa(n) == part[1] && d.stored[name] == ""
		}
		if r.err != nil {
			return
		}
		if part == nil || !ok {
			t, _ := d.Model.Tensor(stored)
			r.err = &CheckpointError{File: t.File, Tensor: stored, Got: "an unknown tensor",
				Want: fmt.Sprintf("those of a draft block of %d layers", d.count)}
		}
		d.stored[name] = stored
	}
}

// last begins the names of the last layer.
func (d *draftFile) last() string { return fmt.Sprintf("%s%d.", stackDrafts, d.count-1) }

// within returns a whole number that has to be there.
func (r *ggufReader) within(key string, least, most int) int {
	n := ggufInt(r, key)
	switch {
	case n == nil:
		r.bad(key, "absent", "a number")
		return 0
	case *n < least || *n > most:
		r.bad(key, *n, fmt.Sprintf("%d to %d", least, most))
	}
	return *n
}

// config adds the draft block to the configuration of a model, which it has to fit.
func (d *draftFile) config(c Config) (Config, error) {
	if c.PlainQueries {
		return Config{}, &ConfigError{"general.architecture", d.arch + " beside DeepSeek-V4.1", "a model of DeepSeek-V4"}
	}
	r := ggufReader{keys: d.Keys}
	err := r.guard(func() {
		of := func(key string, want float64) gguf.Number { return gguf.Number{Key: d.arch + "." + key, Want: want} }
		if key, want, got := d.Differs([]gguf.Number{of("embedding_length", float64(c.Hidden)),
			of("attention.head_count", float64(c.Heads)), of("attention.head_count_kv", 1), of("attention.key_length", cache.D),
			of("attention.q_lora_rank", float64(c.QRank)), of("attention.output_lora_rank", float64(c.ORank)),
			of("attention.output_group_count", float64(c.Groups)), of("attention.sliding_window", float64(c.Window)),
			of("attention.layer_norm_rms_epsilon", float64(c.Eps)), of("rope.dimension_count", ropeDim),
			of("rope.freq_base", c.Main.Theta), of("attention.compress_ratios", 0)}); key != "" {
			r.bad(key, got, fmt.Sprintf("the model's, %v", float32(want)))
		}
		targets := ggufInts(&r, d.targets, maxLayers)
		if len(targets) == 0 {
			r.bad(d.targets, r.keys[d.targets], "numbers of layers")
		}
		c.DraftBlock = r.within(d.block, 1, maxDraftBlock)
		c = c.WithDrafts(r.within(d.layers, 1, maxLayers-c.mainLayers()))
		c.DraftTargets = nil
		for i, n := range targets {
			if n < d.first || n >= c.mainLayers()+d.first || i > 0 && n <= targets[i-1] {
				r.bad(d.targets, targets, fmt.Sprintf("%d to %d, ascending: the model's layers", d.first, c.mainLayers()-1+d.first))
			}
			c.DraftTargets = append(c.DraftTargets, n-d.first)
		}
		if r.err == nil {
			r.err = c.Check()
		}
	})
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

// drafted is a model's files with a draft block from a file of its own, in the place of what layers
// the model has that draft. The block's tensors are mtp.K., with the names of GGUF.
type drafted struct {
	source
	drafts *draftFile
}

func ofDrafts(name string) bool { return strings.HasPrefix(name, stackDrafts) }

func (m drafted) Names() []string {
	var list []string
	for _, name := range m.source.Names() {
		if s, _ := layerName(name); s.stack != stackDrafts {
			list = append(list, name)
		}
	}
	for name := range m.drafts.stored {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

func (m drafted) Has(name string) bool {
	if ofDrafts(name) {
		return m.drafts.stored[name] != ""
	}
	return m.source.Has(name)
}

func (m drafted) File(name string) string {
	if !ofDrafts(name) {
		return m.source.File(name)
	}
	file := m.drafts.file
	if t, there := m.drafts.Model.Tensor(m.drafts.stored[name]); there {
		file = t.File
	}
	return filepath.Join(m.drafts.folder, file)
}

func (m drafted) Tensor(name string) (safetensors.Tensor, error) {
	if !ofDrafts(name) {
		return m.source.Tensor(name)
	}
	t, err := ggufModel{m.drafts.Model}.Tensor(m.drafts.stored[name])
	t.Name = name
	return t, err
}

func (m drafted) attentionName(stored string) (storedName, bool) {
	if ofDrafts(stored) {
		return ggufName(stackDrafts, stored)
	}
	return m.source.attentionName(stored)
}

func (m drafted) spelled(c *Config, layer int, name string) string {
	own := c.mainLayers()
	if layer < own {
		return m.source.spelled(c, layer, name)
	}
	name, _ = ggufNames.Other(name, 1)
	name = fmt.Sprintf("%s%d.%s", stackDrafts, layer-own, name)
	return m.File(name) + ": " + m.drafts.own(name) // the model may have the same name
}

// own returns the name that the file has, or would have, for a tensor.
func (d *draftFile) own(name string) string {
	if own, root := d.names(d.last()).Other(name, 1); root {
		return own
	}
	return d.stack + strings.TrimPrefix(name, stackDrafts)
}

func (m drafted) Close() error { return errors.Join(m.source.Close(), m.drafts.Close()) }
