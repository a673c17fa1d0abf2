package model

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/indexer"
)

// Sizes that all models of DeepSeek-V4 and V4.1 share.
const (
	ropeDim   = 64  // numbers of a head that are rotated: the last ones
	blockSide = 128 // rows and columns of a block with one FP8 scale, unless Config.WeightBlock is another number
	nvBlock   = 16  // columns with one NVFP4 scale
)

// Config describes the attention of a model. The letters: H = Heads, G = Groups, P = H/G heads of
// a group, Hi = IndexHeads.
type Config struct {
	Hidden       int     // hidden_size: width of what goes into a layer and comes out
	Heads        int     // num_attention_heads, H, of 512 numbers each
	QRank        int     // q_lora_rank: width of the query's bottleneck
	ORank        int     // o_lora_rank: width of the output's bottleneck, of each group
	Groups       int     // o_groups, G, a divisor of H
	IndexHeads   int     // index_n_heads, Hi, of 128 numbers each; unused without an indexer
	TopK         int     // index_topk: entries that an indexer picks, up to indexer.MaxK; likewise
	Window       int     // sliding_window, in tokens, the token itself included
	MaxPositions int     // max_position_embeddings
	Eps          float32 // rms_norm_eps, of every norm
	Layers       []Layer // the kind of each layer; those that only predict ahead come last, if they are there
	Main         Rope    // of layers without compressed entries
	Compress     Rope    // of layers with compressed entries
	Hadamard     bool    // indexer queries and keys are mixed before they are quantised; no configuration file says so
	Quantization string  // quantization_config.quant_method as written; "" for none. Weights describe themselves

	// In these DeepSeek-V4.1 differs from V4, which has their zero values, but for those of drafts.
	PlainQueries    bool    // queries have no norm for each head
	CandidateBlocks int     // candidate_topk_blocks, up to indexer.MaxK: see Candidates; unused where no layer has any
	CandidateBlock  int     // candidate_block_size, a power of two up to indexer.MaxBlock; unused likewise
	DraftBlock      int     // dspark_block_size, tokens of a block of drafts; unused without LayerSpec.Block
	DraftTargets    []int   // dspark_target_layer_ids, layers whose states drafts are made of: see DraftBlock; nil: unknown
	WeightBlock     int     // rows and columns of a block of FP8 weights with one scale: 128 or 32; 0 counts as 128
	Records         Records // in what bytes the model's caches are kept; 0 counts as RecordsV4
}

// weightBlock is WeightBlock, or what 0 counts as.
func (c *Config) weightBlock() int { return cmp.Or(c.WeightBlock, blockSide) }

// Rope says by what angles positions turn the last 64 numbers of a head: pair i of 32 by
// position * f_i with f_i = Theta^(-i/32). YaRN divides f_i by Factor for the slow pairs and leaves
// the fast ones alone. The length of vectors stays: YaRN's attention factor is 1.
//
// Sources: "YaRN: Efficient Context Window Extension of Large Language Models",
// Peng et al., section 3.2; precompute_freqs_cis in DeepSeek-V4's inference/model.py.
type Rope struct {
	Theta    float64
	Factor   float64 // of YaRN; 1 (or 0): none, and the rest is unused
	BetaFast float64 // pairs that turn more often than this over Original positions stay as they are
	BetaSlow float64 // pairs that turn less often than this are slowed by the whole Factor
	Original int     // positions that the model knew before it was extended
}

// Scaled reports whether YaRN changes the frequencies.
func (r Rope) Scaled() bool { return r.Factor != 0 && r.Factor != 1 }

// Rope returns the rotation of a layer, for its queries, keys, compressed entries and indexer
// alike. An unknown layer has the zero Rope, for which there is no table.
func (c Config) Rope(layer int) Rope {
	switch {
	case layer < 0 || layer >= len(c.Layers):
		return Rope{}
	case c.Layers[layer].Ratio == 0:
		return c.Main
	}
	return c.Compress
}

// mainLayers returns how many layers do not only predict ahead.
func (c *Config) mainLayers() int {
	n := slices.IndexFunc(c.Layers, func(l Layer) bool { return l.Draft })
	if n < 0 {
		return len(c.Layers)
	}
	return n
}

// HeadsPerGroup returns P = H/G, all heads where Groups is not set.
func (c Config) HeadsPerGroup() int { return c.Heads / max(c.Groups, 1) }

// FlashConfig returns the configuration of DeepSeek-V4-Flash, for use without a checkpoint.
func FlashConfig() Config {
	return Config{Hidden: 4096, Heads: 64, QRank: 1024, ORank: 1024, Groups: 8, IndexHeads: 64, TopK: 512, Window: 128,
		MaxPositions: 1 << 20, Eps: 1e-6, Layers: alternating(Window, 43), Main: plainRope(), Compress: yarnRope(), Quantization: "fp8"}
}

// ProConfig returns the configuration of DeepSeek-V4-Pro.
func ProConfig() Config {
	c := FlashConfig()
	c.Hidden, c.Heads, c.QRank, c.Groups, c.TopK = 7168, 128, 1536, 16, 1024
	c.Layers = alternating(C128A, 61)
	return c
}

// alternating returns n layers: two of the first kind, then C4A and C128A in turn.
func alternating(first LayerSpec, n int) []Layer {
	ratios := []int{first.Ratio, first.Ratio}
	for len(ratios) < n {
		ratios = append(ratios, []int{C4A.Ratio, C128A.Ratio}[len(ratios)%2])
	}
	return V4Layers(ratios...)
}

func plainRope() Rope { return Rope{Theta: 10000, Factor: 1} }

func yarnRope() Rope {
	return Rope{Theta: 160000, Factor: 16, BetaFast: 32, BetaSlow: 1, Original: 65536}
}

// Limits of a configuration. They keep every product of sizes far from overflow, and no model comes
// near them.
const (
	maxWidth      = 1 << 20
	maxLayers     = 1 << 12
	maxDraftBlock = 1 << 6
)

// Check reports the first field that no layer can be built from, as a *ConfigError.
func (c Config) Check() error {
	var err error
	bad := func(field string, got any, want string, a ...any) {
		if err == nil {
			err = &ConfigError{field, fmt.Sprint(got), fmt.Sprintf(want, a...)}
		}
	}
	width := func(field string, v int) {
		if v < 8 || v > maxWidth || v%8 != 0 {
			bad(field, v, "a multiple of 8, at most %d", maxWidth)
		}
	}
	within := func(field string, v, most int) {
		if v < 1 || v > most {
			bad(field, v, "1 to %d", most)
		}
	}
	width("hidden_size", c.Hidden)
	width("q_lora_rank", c.QRank)
	width("o_lora_rank", c.ORank)
	within("num_attention_heads", c.Heads, attention.MaxHeads)
	within("o_groups", c.Groups, attention.MaxHeads)
	if err == nil && c.Heads%c.Groups != 0 {
		bad("o_groups", c.Groups, "a divisor of the %d heads", c.Heads)
	}
	within("sliding_window", c.Window, maxWidth)
	within("max_position_embeddings", c.MaxPositions, 1<<30)
	if !(c.Eps > 0 && c.Eps < 1) {
		bad("rms_norm_eps", c.Eps, "a small positive number")
	}
	within("num_hidden_layers", len(c.Layers), maxLayers)
	checkLayers(c.Layers, bad)
	if c.indexes() {
		within("index_n_heads", c.IndexHeads, indexer.MaxHeads)
		within("index_topk", c.TopK, indexer.MaxK)
	}
	has := func(f func(l *Layer) bool) bool {
		return slices.ContainsFunc(c.Layers, func(l Layer) bool { return f(&l) })
	}
	if has(func(l *Layer) bool { return l.Candidates != CandidatesNone }) {
		within("candidate_topk_blocks", c.CandidateBlocks, indexer.MaxK)
		if n := c.CandidateBlock; n < 1 || n > indexer.MaxBlock || n&(n-1) != 0 {
			bad("candidate_block_size", n, "a power of two, 1 to %d", indexer.MaxBlock)
		}
	}
	if has(func(l *Layer) bool { return l.Block }) {
		within("dspark_block_size", c.DraftBlock, maxDraftBlock)
		for i, l := range c.DraftTargets {
			if main := c.mainLayers(); l < 0 || l >= main || i > 0 && l <= c.DraftTargets[i-1] {
				bad("dspark_target_layer_ids", c.DraftTargets, "numbers of the %d layers that do not draft, ascending", main)
			}
		}
	}
	if side := c.WeightBlock; side != 0 && side != blockSide && side != v41Block {
		bad("quantization_config.weight_block_size", side, "%d or %d", v41Block, blockSide)
	}
	if c.Records > RecordsV41 {
		bad("Records", c.Records, "%v or %v", RecordsV4, RecordsV41)
	}
	c.Main.check(bad, "rope_theta", "rope_parameters.main")
	c.Compress.check(bad, "compress_rope_theta", "rope_scaling")
	return err
}

func (r Rope) check(bad func(string, any, string, ...any), theta, scaling string) {
	if !(r.Theta > 1 && r.Theta < 1e12) {
		bad(theta, r.Theta, "more than 1")
	}
	if !r.Scaled() {
		return
	}
	if !(r.Factor > 1 && r.Factor < 1e6) {
		bad(scaling+".factor", r.Factor, "at least 1")
	}
	if !(r.BetaSlow > 0 && r.BetaFast >= r.BetaSlow && r.BetaFast < 1e6) {
		bad(scaling+".beta_fast", fmt.Sprintf("%v with beta_slow %v", r.BetaFast, r.BetaSlow), "0 < beta_slow <= beta_fast")
	}
	if r.Original < 1 || r.Original > 1<<30 {
		bad(scaling+".original_max_position_embeddings", r.Original, "1 to 2^30")
	}
}

// indexes reports whether a layer has an indexer.
func (c Config) indexes() bool {
	return slices.ContainsFunc(c.Layers, func(l Layer) bool { return l.Picks == PickOwn })
}
