// Package random writes checkpoints of small DeepSeek-V4 and V4.1 models with random weights, for
// tests and examples of programs that use package pipeline. It is for nothing else: the weights
// mean nothing.
package random

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Config returns a model that fits any device: the attention of layers with compress_ratios as
// given, 0 for a window only, 4 for C4A, 128 for C128A; without any, a layer of each. Its sizes may
// be changed: Write takes any configuration that Check accepts.
func Config(ratios ...int) model.Config {
	c := model.FlashConfig()
	c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 192, 4, 128, 64, 2, 8, 16
	if len(ratios) == 0 {
		ratios = []int{0, 4, 128}
	}
	c.Layers = model.V4Layers(ratios...)
	return c
}

// V41Config returns a model of DeepSeek-V4.1 that fits any device, with layers of all roles:
// window, full of ratio 2 and 1, reindex and reuse. Its sizes may be changed, too.
func V41Config() model.Config {
	c := model.FlashV41Config()
	c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads, c.TopK = 192, 4, 128, 64, 2, 8, 16
	c.CandidateBlocks = 5
	s := model.Sources{Entries: []int{1, 3}, Picks: []int{1, 3, 5}, Candidates: 3}
	c.Layers = model.V41Layers(s, 0, 2, 2, 1, 1, 1, 1)
	return c
}

// Write writes a checkpoint to a folder, of the attention alone: config.json and model.safetensors,
// with the names of released checkpoints and weights of bf16. The same seed gives the same weights.
// It needs four bytes of memory for each weight. The layers are those of model.V4Layers or
// model.V41Layers: no drafts.
//
// Errors: model.ErrConfig; the file system's.
func Write(dir string, c model.Config, seed uint64) error {
	if err := c.Check(); err != nil {
		return fmt.Errorf("random: write: %w", err)
	}
	config, err := configFile(c)
	if err != nil {
		return fmt.Errorf("random: write: %w", err)
	}
	w := weights{rng: rand.New(rand.NewPCG(seed, 2))}
	for i := range c.Layers {
		w.layer(fmt.Sprintf("layers.%d.attn.", i), c, &c.Layers[i])
	}
	var file bytes.Buffer
	if err = safetensors.Write(&file, w.tensors...); err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, safetensors.SingleName), file.Bytes(), 0o666)
	}
	if err != nil {
		return fmt.Errorf("random: write: %w", err)
	}
	return nil
}

// configFile is config.json.
func configFile(c model.Config) ([]byte, error) {
	var ratios []int
	for _, l := range c.Layers {
		ratios = append(ratios, l.Ratio)
	}
	f := map[string]any{
		"model_type": "deepseek_v4", "hidden_size": c.Hidden, "num_hidden_layers": len(c.Layers), "num_attention_heads": c.Heads,
		"q_lora_rank": c.QRank, "o_lora_rank": c.ORank, "o_groups": c.Groups, "index_n_heads": c.IndexHeads, "index_topk": c.TopK,
		"sliding_window": c.Window, "max_position_embeddings": c.MaxPositions, "rms_norm_eps": c.Eps, "compress_ratios": ratios,
		"rope_theta": c.Main.Theta, "compress_rope_theta": c.Compress.Theta,
		"rope_scaling": map[string]any{"type": "yarn", "factor": c.Compress.Factor, "beta_fast": c.Compress.BetaFast,
			"beta_slow": c.Compress.BetaSlow, "original_max_position_embeddings": c.Compress.Original},
	}
	if s := model.SourcesOf(c.Layers); c.PlainQueries { // DeepSeek-V4.1
		maps.Copy(f, map[string]any{"model_type": "deepseek_v41", "kv_source_layer_ids": s.Entries, "index_source_layer_ids": s.Picks,
			"candidate_source_layer_id": s.Candidates, "candidate_topk_blocks": c.CandidateBlocks,
			"candidate_block_size": c.CandidateBlock, "dspark_block_size": c.DraftBlock})
	}
	return json.Marshal(f)
}

// weights are tensors of bf16 numbers, one after the other.
type weights struct {
	rng     *rand.Rand
	tensors []safetensors.Tensor
}

func (w *weights) layer(at string, c model.Config, l *model.Layer) {
	w.add(at+"wq_a.weight", c.QRank, c.Hidden)
	w.add(at+"q_norm.weight", c.QRank)
	w.add(at+"wq_b.weight", c.Heads*512, c.QRank)
	w.add(at+"wkv.weight", 512, c.Hidden)
	w.add(at+"kv_norm.weight", 512)
	w.add(at+"attn_sink", c.Heads)
	w.add(at+"wo_a.weight", c.Groups*c.ORank, c.HeadsPerGroup()*512)
	w.add(at+"wo_b.weight", c.Hidden, c.Groups*c.ORank)
	if l.Compresses() {
		w.compressor(at+"compressor.", c.Hidden, l, 512)
	}
	if l.Picks == model.PickOwn {
		w.add(at+"indexer.wq_b.weight", c.IndexHeads*128, c.QRank)
		w.add(at+"indexer.weights_proj.weight", c.IndexHeads, c.Hidden)
		switch {
		case l.LatentKeys:
			w.add(at+"indexer.wk.weight", 128, 512)
			w.add(at+"indexer.k_norm.weight", 128)
		case l.Compresses():
			w.compressor(at+"indexer.compressor.", c.Hidden, l, 128)
		}
	}
}

// compressor adds the tensors that make entries of `numbers` numbers.
func (w *weights) compressor(at string, hidden int, l *model.Layer, numbers int) {
	channels := numbers
	if l.Overlap { // every entry sees the tokens of two groups
		channels *= 2
	}
	w.add(at+"wkv.weight", channels, hidden)
	if l.Gated() {
		w.add(at+"wgate.weight", channels, hidden)
	}
	if !l.Unplaced {
		w.add(at+"ape", l.Ratio, channels)
	}
	w.add(at+"norm.weight", numbers)
}

// add adds a tensor: a matrix whose outputs are as long as its inputs, more or less, or
// numbers around 1.
func (w *weights) add(name string, shape ...int) {
	n, mean, spread := 1, 1.0, 0.125
	for _, d := range shape {
		n *= d
	}
	if len(shape) > 1 {
		mean, spread = 0, 1/math.Sqrt(float64(shape[len(shape)-1]))
	}
	data := make([]byte, 0, 2*n)
	for range n {
		x := float32(mean + spread*w.rng.NormFloat64())
		data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(x)>>16))
	}
	w.tensors = append(w.tensors, safetensors.Tensor{Name: name, DType: safetensors.BF16, Shape: shape, Data: data})
}
