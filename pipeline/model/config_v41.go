package model

import (
	"encoding/json"
	"fmt"
	"slices"
)

// inferenceFile is the inference/config.json beside a checkpoint of DeepSeek-V4.1. What it does not
// list is spelled as in config.json.
type inferenceFile struct {
	Hidden      *int      `json:"dim"`
	Layers      *int      `json:"n_layers"`
	Heads       *int      `json:"n_heads"`
	RopeDim     *int      `json:"rope_head_dim"`
	Eps         *float64  `json:"norm_eps"`
	Window      *int      `json:"window_size"`
	Factor      *float64  `json:"rope_factor"`
	BetaFast    *float64  `json:"beta_fast"`
	BetaSlow    *float64  `json:"beta_slow"`
	Original    *int      `json:"original_seq_len"`
	Entries     list[int] `json:"kv_source_layers"`
	Picks       list[int] `json:"index_source_layers"`
	Candidates  *int      `json:"candidate_source_layer"`
	DraftLayers *int      `json:"n_mtp_layers"`
}

// inferenceNames are the names of inferenceFile by those of config.json.
var inferenceNames = map[string]string{
	"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "qk_rope_head_dim": "rope_head_dim",
	"rms_norm_eps": "norm_eps", "sliding_window": "window_size", "kv_source_layer_ids": "kv_source_layers",
	"index_source_layer_ids": "index_source_layers", "candidate_source_layer_id": "candidate_source_layer",
	"num_nextn_predict_layers": "n_mtp_layers", "rope_scaling.factor": "rope_factor", "rope_scaling.beta_fast": "beta_fast",
	"rope_scaling.original_max_position_embeddings": "original_seq_len", "max_position_embeddings": "original_seq_len",
}

// inference reads a configuration by the names of DeepSeek's inference code, if it is V4.1's. It
// gives no last position: that is where the rotation's scaling ends.
func (r *configReader) inference(data []byte) {
	var own inferenceFile
	if r.f.Text != nil || r.f.Hidden != nil || json.Unmarshal(data, &own) != nil || own.Entries == nil {
		return
	}
	f := &r.f
	r.spelled = inferenceNames
	f.Hidden, f.Layers, f.Heads, f.RopeDim, f.Eps, f.Window = own.Hidden, own.Layers, own.Heads, own.RopeDim, own.Eps, own.Window
	f.Entries, f.Picks, f.Candidates, f.DraftLayers = own.Entries, own.Picks, own.Candidates, own.DraftLayers
	f.OldDim, f.OldLayers = nil, nil
	yarn := "yarn"
	f.Scaling = &ropeNamed{ropeFile: ropeFile{Type: &yarn, Factor: own.Factor, BetaFast: own.BetaFast, BetaSlow: own.BetaSlow,
		Original: own.Original}}
	if last := or(own.Factor, 0) * float64(or(own.Original, 0)); f.MaxPos == nil && last >= 1 && last <= 1<<30 {
		n := int(last)
		f.MaxPos = &n
	}
}

// v41Types are the names of the model, and of the text model inside it.
var v41Types = []string{"deepseek_v41", "deepseek_v41_text"}

const v41Architecture = "DeepseekV41ForCausalLM"

// isV41 reports whether a configuration says that it is DeepSeek-V4.1's: by its type, or, without
// one, by its architecture or the lists that only V4.1 has.
func (r *configReader) isV41() bool {
	if r.f.ModelType != nil {
		return slices.Contains(v41Types, *r.f.ModelType)
	}
	return slices.Contains(r.f.Names, v41Architecture) || r.f.Entries != nil
}

// v41 reads what is DeepSeek-V4.1's own.
func (r *configReader) v41(c *Config, drafts bool) {
	f := r.f
	c.setV41()
	c.Eps = float32(need(r, "rms_norm_eps", f.Eps))
	n := need(r, "num_hidden_layers", f.Layers)
	switch {
	case n < 1 || n > maxLayers:
		r.bad("num_hidden_layers", n, "1 to %d", maxLayers)
	case len(f.Ratios) < n || len(f.Ratios) > maxLayers:
		r.bad("compress_ratios", fmt.Sprintf("%d ratios", len(f.Ratios)), "one for each of %d layers", n)
	}
	s := Sources{r.list("kv_source_layer_ids", f.Entries), r.list("index_source_layer_ids", f.Picks),
		need(r, "candidate_source_layer_id", f.Candidates)}
	if r.err == nil {
		r.sources(s, f.Ratios[:n])
		r.v41Types(s, n)
	}
	if r.err != nil {
		return
	}
	c.Layers = V41Layers(s, f.Ratios[:n]...)
	if s.Candidates >= 0 {
		c.CandidateBlocks, c.CandidateBlock = need(r, "candidate_topk_blocks", f.Blocks), need(r, "candidate_block_size", f.BlockSize)
	}
	if c.DraftBlock = or(f.DraftBlock, 0); drafts {
		r.v41Drafts(c, f.Ratios[n:])
	}
}

// list is a list that has to be there.
func (r *configReader) list(field string, v []int) []int {
	if v == nil {
		r.bad(field, "absent", "a list of layers")
	}
	return v
}

// sources refuses lists of V4.1 by which a layer would lack what it reads.
func (r *configReader) sources(s Sources, ratios []int) {
	for _, list := range []struct {
		field  string
		layers []int
	}{{"kv_source_layer_ids", s.Entries}, {"index_source_layer_ids", s.Picks}} {
		for i, n := range list.layers {
			switch {
			case n < 0 || n >= len(ratios) || i > 0 && n <= list.layers[i-1]:
				r.bad(list.field, list.layers, "numbers of the %d layers, ascending", len(ratios))
				return
			case ratios[n] == 0:
				r.bad(list.field, n, "layers whose compress_ratios are not 0")
			case !slices.Contains(s.Picks, n):
				r.bad("index_source_layer_ids", s.Picks, "all of kv_source_layer_ids, %v", s.Entries)
			}
		}
	}
	for i, ratio := range ratios {
		source := newest(s.Entries, i)
		switch {
		case !slices.Contains(v41Ratios, ratio):
			r.bad("compress_ratios", fmt.Sprintf("%d for layer %d", ratio, i), "%v", v41Ratios)
		case ratio == 0:
		case source < 0:
			r.bad("kv_source_layer_ids", s.Entries, "a layer at or below layer %d, whose ratio is %d", i, ratio)
		case ratios[source] != ratio:
			r.bad("compress_ratios", fmt.Sprintf("%d for layer %d", ratio, i), "%d, as layer %d has it, whose entries it reads",
				ratios[source], source)
		}
	}
	if n := s.Candidates; n >= 0 && (!slices.Contains(s.Picks, n) || ratios[n] != 1) {
		r.bad("candidate_source_layer_id", n, "one of index_source_layer_ids, %v, with a ratio of 1, or less than 0 for none", s.Picks)
		return
	}
	for _, n := range s.Picks {
		if source := s.Candidates; source >= 0 && n > source && ratios[n] != ratios[source] {
			r.bad("compress_ratios", fmt.Sprintf("%d for layer %d", ratios[n], n), "%d, as layer %d has it, whose candidates it scores",
				ratios[source], source)
		}
	}
}

// v41Types demands of layer_types what newer versions of transformers write: they follow from the
// lists of sources.
func (r *configReader) v41Types(s Sources, n int) {
	if r.f.Types != nil && len(r.f.Types) < n {
		r.bad("layer_types", fmt.Sprintf("%d types", len(r.f.Types)), "one for each of %d layers", n)
		return
	}
	for i := range min(n, len(r.f.Types)) {
		want := "sliding_attention"
		if slices.Contains(s.Entries, i) {
			want = "shared_compressed_attention"
		}
		if got := r.f.Types[i]; got != want {
			r.bad("layer_types", fmt.Sprintf("%.60q for layer %d", got, i), "%s, by kv_source_layer_ids", want)
		}
	}
}

// notV41 refuses what only V4.1 has in the configuration of another model.
func (r *configReader) notV41() {
	f := &r.f
	switch {
	case slices.Contains(f.Names, v41Architecture):
		r.bad("architectures", f.Names, "another than %s, or the model_type %s", v41Architecture, v41Types[0])
	case f.Entries != nil:
		r.bad("kv_source_layer_ids", f.Entries, "absent, or the model_type %s", v41Types[0])
	case f.Picks != nil:
		r.bad("index_source_layer_ids", f.Picks, "absent, or the model_type %s", v41Types[0])
	case f.Candidates != nil:
		r.bad("candidate_source_layer_id", *f.Candidates, "absent, or the model_type %s", v41Types[0])
	}
}

// v41Drafts adds the layers that draft. Where compress_ratios ends with the model's own layers,
// num_nextn_predict_layers says how many they are.
func (r *configReader) v41Drafts(c *Config, ratios []int) {
	n := or(r.f.DraftLayers, len(ratios))
	if n < 0 || n > maxLayers {
		r.bad("num_nextn_predict_layers", n, "0 to %d", maxLayers)
		return
	}
	if len(ratios) == 0 {
		ratios = make([]int, n)
	}
	if n != len(ratios) {
		r.bad("num_nextn_predict_layers", n, "the %d that compress_ratios lists behind the others", len(ratios))
	}
	r.drafts(c, ratios)
}

// drafts adds layers that draft, with the ratios that a configuration gives them.
func (r *configReader) drafts(c *Config, ratios []int) {
	for _, ratio := range ratios {
		if ratio != 0 {
			r.bad("compress_ratios", fmt.Sprintf("%d for layer %d", ratio, len(c.Layers)), "0 for a layer that drafts")
		}
		*c = c.WithDrafts(1)
	}
	if len(ratios) > 0 {
		c.DraftBlock, c.DraftTargets = need(r, "dspark_block_size", r.f.DraftBlock), r.f.Targets
	}
}
