package weights

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/pipeline/model"
)

// TestReleasedName holds every spelling of model.md's table against the released one.
func TestReleasedName(t *testing.T) {
	for released, others := range map[string][]string{
		"embed.weight":                          {"model.embed_tokens.weight", "embed.weight"},
		"norm.weight":                           {"model.norm.weight", "model.language_model.norm.weight"},
		"head.weight":                           {"head.weight", "lm_head.weight"},
		"hc_head_fn":                            {"model.hc_head.hc_fn", "hc_head_fn", "model.hc_head.fn"},
		"layers.3.hc_attn_base":                 {"model.layers.3.hc_attn_base", "model.layers.3.attn_hc.base"},
		"layers.3.hc_ffn_scale":                 {"model.layers.3.ffn_hc.scale"},
		"layers.3.attn_norm.weight":             {"model.layers.3.input_layernorm.weight"},
		"layers.3.ffn_norm.weight":              {"model.layers.3.post_attention_layernorm.weight"},
		"layers.3.ffn.gate.weight":              {"model.layers.3.mlp.gate.weight"},
		"layers.3.ffn.gate.bias":                {"model.layers.3.mlp.gate.e_score_correction_bias"},
		"layers.3.ffn.gate.tid2eid":             {"model.layers.3.mlp.gate.tid2eid", "layers.3.ffn.gate.tid2eid"},
		"layers.3.ffn.experts.7.w1.weight":      {"model.layers.3.ffn.experts.7.w1.weight", "model.layers.3.mlp.experts.7.gate_proj.weight"},
		"layers.3.ffn.experts.7.w2.scale":       {"layers.3.ffn.experts.7.w2.weight_scale_inv", "layers.3.ffn.experts.7.w2.weight_scale"},
		"layers.3.ffn.experts.gate_up_proj":     {"model.layers.3.mlp.experts.gate_up_proj"},
		"layers.3.ffn.shared_experts.w3.weight": {"model.layers.3.mlp.shared_experts.up_proj.weight"},
		"mtp.1.ffn.gate.weight":                 {"mtp.1.ffn.gate.weight", "model.mtp.1.mlp.gate.weight"},
		"": {
			"mtp.0.attn.wq_a.weight", "layers.3.attn.wq_a.weight", "model.layers.3.self_attn.kv_norm.weight"},
	} {
		for _, stored := range others {
			assert.Equal(t, released, releasedName(stored), stored)
		}
	}
	assert.True(t, seesImages([]string{"head.weight", "vision.patch_embed.weight"}), "DeepSeek-V4-Flash-Vision-Exp")
	assert.False(t, seesImages([]string{"head.weight", "layers.1.vision.weight"}))
	_, err := releasedNames([]string{"head.weight", "lm_head.weight"})
	assert.ErrorIs(t, err, model.ErrCheckpoint)
}

// TestNumbers holds values that the formats' descriptions give.
func TestNumbers(t *testing.T) {
	m := Matrix{Format: MXFP4, N: 1, K: 32, Data: make([]byte, 16), Scales: []byte{128}}
	m.Data[1] = 0xF3 // column 2 in the low nibble, 3 in the high one
	row := make([]float32, 32)
	m.Row(row, 0)
	assert.Equal(t, []float32{0, 0, 3, -12, 0}, row[:5])
}
