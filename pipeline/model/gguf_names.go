package model

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/internal/gguf"
)

// ggufNames has a row for each tensor of attention: as GGUF calls it within its block, and as
// released.
var ggufNames = gguf.Names{
	{"attn_q_a.", "wq_a."},
	{"attn_q_a_norm.", "q_norm."},
	{"attn_q_b.", "wq_b."},
	{"attn_kv.", "wkv."},
	{"attn_kv_a_norm.", "kv_norm."},
	{"attn_output_a.", "wo_a."},
	{"attn_output_b.", "wo_b."},
	{"attn_sinks.weight", "attn_sink"},
	{"attn_compressor_ape.weight", "compressor.ape"},
	{"attn_compressor_kv.", "compressor.wkv."},
	{"attn_compressor_gate.", "compressor.wgate."},
	{"attn_compressor_norm.", "compressor.norm."},
	{"indexer.attn_q_b.", "indexer.wq_b."},
	{"indexer.proj.", "indexer.weights_proj."},
	{"indexer_compressor_ape.weight", "indexer.compressor.ape"},
	{"indexer_compressor_kv.", "indexer.compressor.wkv."},
	{"indexer_compressor_gate.", "indexer.compressor.wgate."},
	{"indexer_compressor_norm.", "indexer.compressor.norm."},
}

// ggufStack precedes the numbers of layers.
const ggufStack = "blk."

func (ggufModel) attentionName(stored string) (storedName, bool) { return ggufName(ggufStack, stored) }

func (ggufModel) spelled(_ *Config, layer int, name string) string {
	name, _ = ggufNames.Other(name, 1)
	return fmt.Sprintf("%s%d.%s", ggufStack, layer, name)
}

// ggufName takes apart the name of a tensor of attention, one that is not known among them. The
// norm in front of attention is not attention's.
func ggufName(stack, stored string) (s storedName, ok bool) {
	rest, found := strings.CutPrefix(stored, stack)
	number, name, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	if !found || err != nil || n < 0 || strconv.Itoa(n) != number || strings.HasPrefix(name, "attn_norm.") ||
		!strings.HasPrefix(name, "attn_") && !strings.HasPrefix(name, "indexer") {
		return storedName{}, false
	}
	name, _ = ggufNames.Other(name, 0)
	return storedName{stack: stack, number: n, name: name}, true
}
