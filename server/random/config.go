// Package random writes checkpoints of whole DeepSeek-V4 models with random weights, in the formats
// of released ones: FP8 attention and shared experts, MXFP4 experts, bf16 for the rest. They are
// for timing a server where the real weights are not, and for tests. The weights mean nothing.
package random

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/weights"
)

// widths are configurations by name. Their layers are those of the released model.
var widths = map[string]func() weights.Config{
	"flash": func() weights.Config {
		return released(model.FlashConfig(), 256, 2048, 1.5)
	},
	"pro": func() weights.Config {
		return released(model.ProConfig(), 384, 3072, 2.5)
	},
	// small has what blocks of GGUF need.
	"small": func() weights.Config {
		c := model.FlashConfig()
		c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 512, 8, 256, 256, 2, 16, 64
		c.Layers = model.V4Layers(0, 0, 4, 128)
		w := released(c, 8, 256, 1.5)
		w.Vocab, w.PerToken = 512, 2
		return w
	},
	// tiny is as odd as the operations permit, with a layer of each kind.
	"tiny": func() weights.Config {
		c := model.FlashConfig()
		c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 192, 4, 128, 64, 2, 8, 16
		c.Layers = model.V4Layers(4, 0, 128)
		w := released(c, 5, 96, 1.5)
		w.Vocab, w.Streams, w.PerToken = 264, 2, 2
		return w
	},
}

// hashLayers is the number of layers of a released model that choose experts by token id.
const hashLayers = 3

func released(attention model.Config, experts, width int, factor float32) weights.Config {
	return weights.Config{Config: attention, Vocab: 129280, Streams: 4, SinkhornSteps: 20, HyperEps: 1e-6, Experts: experts, PerToken: 6,
		Width: width, Scoring: "sqrtsoftplus", Normalise: true, Factor: factor, Limit: 10, EOS: []int32{1}}
}

// Config returns the configuration of a model as wide as a released one, flash or pro, or of a tiny
// one, with its first layers: 0 means all.
func Config(width string, layers int) (weights.Config, error) {
	of := widths[width]
	if of == nil {
		return weights.Config{}, fmt.Errorf("random: width: got %q, want %s", width, strings.Join(slices.Sorted(maps.Keys(widths)), ", "))
	}
	c := of()
	if layers < 0 || layers > len(c.Layers) {
		return c, fmt.Errorf("random: layers: got %d, want 1 to %d, or 0 for all", layers, len(c.Layers))
	}
	if layers > 0 {
		c.Layers = c.Layers[:layers]
	}
	c.Hash = make([]bool, len(c.Layers))
	for i := range min(hashLayers, len(c.Hash)-1) { // one layer at least has a router that chooses
		c.Hash[i] = true
	}
	return c, nil
}

// WithDrafts adds a DSpark block, as released models have one: three layers on the states of the
// last three of the model's own.
func WithDrafts(c weights.Config) weights.Config {
	own := len(c.Layers)
	c.DraftTargets = nil
	for i := max(0, own-3); i < own; i++ {
		c.DraftTargets = append(c.DraftTargets, i)
	}
	c.Config = c.Config.WithDrafts(3)
	c.Hash = append(slices.Clone(c.Hash), make([]bool, len(c.Layers)-own)...)
	c.Noise, c.MarkovRank = min(128799, int32(c.Vocab)-1), min(256, c.Hidden/4)
	return c
}

// configFile is config.json, in the spelling of released checkpoints.
func configFile(c weights.Config) ([]byte, error) {
	hash := 0
	for hash < len(c.Hash) && c.Hash[hash] {
		hash++
	}
	var ratios []int
	for _, l := range c.Layers {
		ratios = append(ratios, l.Ratio)
	}
	fields := map[string]any{
		"architectures": []string{"DeepseekV4ForCausalLM"}, "model_type": "deepseek_v4", "torch_dtype": "bfloat16",
		"vocab_size": c.Vocab, "hidden_size": c.Hidden, "num_hidden_layers": c.Own(), "max_position_embeddings": c.MaxPositions,
		"rms_norm_eps": c.Eps, "hidden_act": "silu", "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": c.EOS[0],

		"num_attention_heads": c.Heads, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": c.QRank,
		"o_lora_rank": c.ORank, "o_groups": c.Groups, "index_n_heads": c.IndexHeads, "index_head_dim": 128, "index_topk": c.TopK,
		"sliding_window": c.Window, "compress_ratios": ratios, "rope_theta": c.Main.Theta, "compress_rope_theta": c.Compress.Theta,
		"rope_scaling": map[string]any{"type": "yarn", "factor": c.Compress.Factor, "beta_fast": c.Compress.BetaFast,
			"beta_slow": c.Compress.BetaSlow, "original_max_position_embeddings": c.Compress.Original},

		"hc_mult": c.Streams, "hc_sinkhorn_iters": c.SinkhornSteps, "hc_eps": c.HyperEps, "n_routed_experts": c.Experts,
		"n_shared_experts": 1, "num_experts_per_tok": c.PerToken, "moe_intermediate_size": c.Width, "num_hash_layers": hash,
		"scoring_func": c.Scoring, "topk_method": "noaux_tc", "norm_topk_prob": c.Normalise, "routed_scaling_factor": c.Factor,
		"swiglu_limit": c.Limit, "expert_dtype": "fp4", "num_nextn_predict_layers": 0,
		"quantization_config": map[string]any{"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
			"weight_block_size": []int{weights.FP8Block, weights.FP8Block}},
	}
	if c.MarkovRank > 0 {
		maps.Copy(fields, map[string]any{"num_nextn_predict_layers": 1, "dspark_block_size": c.DraftBlock,
			"dspark_target_layer_ids": c.DraftTargets, "dspark_noise_token_id": c.Noise, "dspark_markov_rank": c.MarkovRank})
	}
	return json.MarshalIndent(fields, "", "  ")
}
