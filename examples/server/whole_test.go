package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/safetensors"
)

// whole writes a small model with a layer of each kind and random weights to a folder. Its answers
// are as random as they can be.
func whole(t *testing.T) (dir string, vocabulary int) {
	t.Helper()
	const vocab, streams, experts, width = 64, 2, 3, 32
	cfg := fakemodel.Config(4, 0, 128)
	m, err := fakemodel.New(fakemodel.Options{Config: cfg, Storage: fakemodel.FP8})
	require.NoError(t, err)
	for field, v := range map[string]any{"vocab_size": vocab, "hc_mult": streams, "n_routed_experts": experts,
		"num_experts_per_tok": 2, "moe_intermediate_size": width, "routed_scaling_factor": 1.5, "num_hash_layers": 0} {
		m.Config[field] = v
	}
	m.Remove("embed.weight")
	rng := rand.New(rand.NewPCG(4, 5))
	add := func(name string, shape ...int) {
		n, data := 1, []byte{}
		for _, d := range shape {
			n *= d
		}
		for range n {
			v := rng.NormFloat64() / math.Sqrt(float64(shape[len(shape)-1]))
			if len(shape) == 1 {
				v = 1 + rng.NormFloat64()/8
			}
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		}
		m.Tensors = append(m.Tensors, &fakemodel.Tensor{Name: name, DType: safetensors.F32, Shape: shape, Data: data})
	}
	hyper := func(name string, rows, scales int) {
		add(name+"_fn", rows, streams*cfg.Hidden)
		add(name+"_base", rows)
		add(name+"_scale", scales)
	}
	add("embed.weight", vocab, cfg.Hidden)
	add("head.weight", vocab, cfg.Hidden)
	add("norm.weight", cfg.Hidden)
	hyper("hc_head", streams, 1)
	for i := range cfg.Layers {
		at := fmt.Sprintf("layers.%d.", i)
		hyper(at+"hc_attn", (2+streams)*streams, 3)
		hyper(at+"hc_ffn", (2+streams)*streams, 3)
		add(at+"attn_norm.weight", cfg.Hidden)
		add(at+"ffn_norm.weight", cfg.Hidden)
		add(at+"ffn.gate.weight", experts, cfg.Hidden)
		add(at+"ffn.gate.bias", experts)
		for e := range experts + 1 {
			stem := fmt.Sprintf("%sffn.experts.%d", at, e)
			if e == experts {
				stem = at + "ffn.shared_experts"
			}
			add(stem+".w1.weight", width, cfg.Hidden)
			add(stem+".w3.weight", width, cfg.Hidden)
			add(stem+".w2.weight", cfg.Hidden, width)
		}
	}
	dir = t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	return dir, vocab
}
