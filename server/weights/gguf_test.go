package weights

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/pipeline/model"
)

// wholeKeys are those of a model of two layers with 4 experts.
func wholeKeys(cfg model.Config) []fakegguf.Key {
	list := fakegguf.Keys(cfg)
	for _, k := range []fakegguf.Key{{Name: "hyper_connection.count", Value: uint32(4)},
		{Name: "hyper_connection.sinkhorn_iterations", Value: uint32(20)}, {Name: "hyper_connection.epsilon", Value: float32(1e-6)},
		{Name: "hash_layer_count", Value: uint32(1)}, {Name: "expert_count", Value: uint32(4)},
		{Name: "expert_used_count", Value: uint32(2)},
		{Name: "expert_shared_count", Value: uint32(1)}, {Name: "expert_feed_forward_length", Value: uint32(64)},
		{Name: "expert_gating_func", Value: uint32(4)}, {Name: "expert_weights_scale", Value: float32(1.5)},
		{Name: "expert_weights_norm", Value: true}, {Name: "swiglu_clamp_exp", Value: []float32{10, 10, 10}}} {
		list = append(list, fakegguf.Key{Name: "deepseek4." + k.Name, Value: k.Value})
	}
	return append(list, fakegguf.Key{Name: "tokenizer.ggml.eos_token_id", Value: uint32(1)})
}

func wholeTensors(cfg model.Config) []fakegguf.Tensor {
	rng, d := rand.New(rand.NewPCG(1, 2)), cfg.Hidden
	list := fakegguf.Attention(cfg, 3, func(name string) string {
		if strings.HasSuffix(name, "_norm.weight") || name == "attn_sinks.weight" {
			return "F32"
		}
		return "Q8_0"
	})
	add := func(name, format string, shape ...int) {
		list = append(list, fakegguf.Random(rng, name, format, shape...))
	}
	add("token_embd.weight", "F16", 96, d)
	add("output.weight", "Q5_0", 96, d)
	add("output_norm.weight", "F32", d)
	add("output_hc_fn.weight", "Q8_0", 4, 4*d)
	add("output_hc_base.weight", "F32", 4)
	add("output_hc_scale.weight", "F32", 1)
	for i, n := range []string{"blk.0.", "blk.1."} {
		for _, hc := range []string{"hc_attn", "hc_ffn"} {
			add(n+hc+"_fn.weight", "F16", 24, 4*d)
			add(n+hc+"_base.weight", "F32", 24)
			add(n+hc+"_scale.weight", "F32", 3)
		}
		add(n+"attn_norm.weight", "F32", d)
		add(n+"ffn_norm.weight", "F32", d)
		add(n+"ffn_gate_inp.weight", "BF16", 4, d)
		if i == 0 {
			list = append(list, fakegguf.Tensor{Name: n + "ffn_gate_tid2eid.weight", Format: "I32", Shape: []int{96, 2},
				Data: make([]byte, 4*2*96)})
		} else {
			add(n+"exp_probs_b.bias", "F32", 4)
		}
		add(n+"ffn_gate_exps.weight", "Q4_0", 4, 64, d)
		add(n+"ffn_up_exps.weight", "MXFP4", 4, 64, d)
		add(n+"ffn_down_exps.weight", "NVFP4", 4, d, 64)
		add(n+"ffn_gate_shexp.weight", "Q8_0", 64, d)
		add(n+"ffn_up_shexp.weight", "Q8_0", 64, d)
		add(n+"ffn_down_shexp.weight", "F32", d, 64)
	}
	factors := fakegguf.Tensor{Name: "blk.1.ffn_down_exps.scale", Format: "F32", Shape: []int{4}}
	for _, bits := range []uint32{0x3f800000, 0x40000000, 0x3f000000, 0x40400000} { // 1, 2, 0.5, 3
		factors.Data = append(factors.Data, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
	}
	for name, data := range map[string][]byte{"output": {0, 0, 0, 63}, "blk.1.ffn_gate_inp": {0, 0, 0, 64}, // 0.5, 2
		"blk.0.ffn_down_shexp": {0, 0, 64, 64}} { // 3
		list = append(list, fakegguf.Tensor{Name: name + ".scale", Format: "F32", Shape: []int{1}, Data: data})
	}
	return append(list, factors)
}

func openWhole(t *testing.T, keys []fakegguf.Key, tensors []fakegguf.Tensor) (*Model, error) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, os.WriteFile(path, fakegguf.Encode(keys, tensors), 0o666))
	m, err := Open(path)
	if err == nil {
		t.Cleanup(func() { assert.NoError(t, m.Close()) })
	}
	return m, err
}

func TestGGUF(t *testing.T) {
	cfg := fakemodel.Config(0, 4)
	tensors := wholeTensors(cfg)
	m, err := openWhole(t, wholeKeys(cfg), tensors)
	require.NoError(t, err)
	c := m.Config
	assert.Equal(t, []any{96, 4, 20, float32(1e-6), 4, 2, 64, true, float32(1.5), float32(10), []bool{true, false}, []int32{1}},
		[]any{c.Vocab, c.Streams, c.SinkhornSteps, c.HyperEps, c.Experts, c.PerToken, c.Width, c.Normalise, c.Factor, c.Limit,
			c.Hash, c.EOS})
	check := func(name string, got *Matrix, part, of int, factor float32) {
		x := tensors[slices.IndexFunc(tensors, func(x fakegguf.Tensor) bool { return x.Name == name })]
		f := gguf.FormatNamed(x.Format)
		all := make([]float32, len(x.Data)/f.Bytes*f.Values)
		f.Decode(all, x.Data)
		want, row := all[len(all)/of*part:][:len(all)/of], make([]float32, got.K)
		require.Len(t, want, got.N*got.K, name)
		for r := range got.N {
			got.Row(row, r)
			for i, v := range row {
				require.Equal(t, want[r*got.K+i]*factor, v, "%s: %d, %d", name, r, i)
			}
		}
	}
	check("token_embd.weight", &m.Embed, 0, 1, 1)
	check("output.weight", &m.Head, 0, 1, .5)
	check("output_hc_fn.weight", &m.HeadHC.Fn, 0, 1, 1)
	check("blk.1.hc_ffn_fn.weight", &m.Layers[1].FFNHC.Fn, 0, 1, 1)
	check("blk.0.ffn_gate_inp.weight", &m.Layers[0].Gate, 0, 1, 1)
	check("blk.0.ffn_up_shexp.weight", &m.Layers[0].Shared.W3, 0, 1, 1)
	check("blk.0.ffn_down_shexp.weight", &m.Layers[0].Shared.W2, 0, 1, 3)
	check("blk.1.ffn_gate_inp.weight", &m.Layers[1].Gate, 0, 1, 2)
	for e, factor := range []float32{1, 2, .5, 3} {
		check("blk.1.ffn_gate_exps.weight", &m.Layers[1].Experts[e].W1, e, 4, 1)
		check("blk.1.ffn_up_exps.weight", &m.Layers[1].Experts[e].W3, e, 4, 1)
		check("blk.1.ffn_down_exps.weight", &m.Layers[1].Experts[e].W2, e, 4, factor)
	}
	assert.Len(t, m.Layers[0].Table, 2*96)
	assert.Len(t, m.Layers[1].Bias, 4)
	require.NoError(t, m.Examine(t.Context(), slog.New(slog.DiscardHandler)))
	assert.Len(t, m.Identity(), 64)
	assert.NoError(t, m.Intact())
}

// A scale that is not finite is refused, by its place.
func TestGGUFFinite(t *testing.T) {
	cfg := fakemodel.Config(0, 4)
	tensors := wholeTensors(cfg)
	at := slices.IndexFunc(tensors, func(x fakegguf.Tensor) bool { return x.Name == "blk.1.ffn_gate_exps.weight" })
	copy(tensors[at].Data[18*(2*64*6+3*6+1):], []byte{0, 0x7C}) // Q4_0 of 192 columns
	m, err := openWhole(t, wholeKeys(cfg), tensors)
	require.NoError(t, err)
	err = m.Examine(t.Context(), slog.New(slog.DiscardHandler))
	assert.ErrorIs(t, err, model.ErrCheckpoint)
	assert.ErrorContains(t, err, "blk.1.ffn_gate_exps.weight: got a scale that is not finite at [2 3 32]")
}

// Experts that a file claims cost no memory before their tensor was found.
func TestGGUFClaimedExperts(t *testing.T) {
	cfg := fakemodel.Config(0, 4)
	keys := wholeKeys(cfg)
	keys[slices.IndexFunc(keys, func(k fakegguf.Key) bool { return k.Name == ggufKeys+"expert_count" })].Value = uint32(1 << 16)
	var before, after runtime.MemStats
	tensors := wholeTensors(cfg)
	runtime.ReadMemStats(&before)
	_, err := openWhole(t, keys, tensors)
	runtime.ReadMemStats(&after)
	assert.ErrorIs(t, err, model.ErrCheckpoint)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
}

func TestGGUFRefused(t *testing.T) {
	cfg := fakemodel.Config(0, 4)
	without := func(name string) []fakegguf.Tensor {
		return slices.DeleteFunc(wholeTensors(cfg), func(x fakegguf.Tensor) bool { return x.Name == name })
	}
	for _, name := range []string{"token_embd.weight", "output.weight", "output_norm.weight", "output_hc_fn.weight",
		"blk.0.hc_attn_base.weight",
		"blk.1.hc_ffn_scale.weight", "blk.0.attn_norm.weight", "blk.1.ffn_norm.weight", "blk.0.ffn_gate_inp.weight",
		"blk.1.exp_probs_b.bias", "blk.0.ffn_gate_tid2eid.weight", "blk.1.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight",
		"blk.1.ffn_down_exps.weight", "blk.0.ffn_gate_shexp.weight", "blk.0.ffn_up_shexp.weight", "blk.1.ffn_down_shexp.weight"} {
		_, err := openWhole(t, wholeKeys(cfg), without(name))
		assert.ErrorIs(t, err, model.ErrCheckpoint, name)
		assert.ErrorContains(t, err, name+": got absent", name)
	}
	turned := wholeTensors(cfg)
	at := slices.IndexFunc(turned, func(x fakegguf.Tensor) bool { return x.Name == "blk.1.ffn_up_exps.weight" })
	turned[at].Shape = []int{64, 4, cfg.Hidden}
	_, err := openWhole(t, wholeKeys(cfg), turned)
	assert.ErrorContains(t, err, "blk.1.ffn_up_exps.weight: got MXFP4 [64 4 192], want shape [4 64 192]")
	turned[at].Shape, turned[at].Format, turned[at].Data = []int{4, 64, cfg.Hidden}, "Q4_1", make([]byte, 4*64*cfg.Hidden/32*20)
	_, err = openWhole(t, wholeKeys(cfg), turned)
	assert.ErrorContains(t, err, "blk.1.ffn_up_exps.weight: got Q4_1 [4 64 192], want one of F32, F16, BF16, Q8_0, Q4_0, ")

	for key, c := range map[string]struct {
		value any
		want  string
	}{
		"expert_gating_func":         {uint32(2), "got 2, want 4"},
		"expert_shared_count":        {uint32(2), "got 2, want 1"},
		"expert_count":               {uint32(0), "got 0, want 1 to"},
		"expert_used_count":          {uint32(5), "got 5, want 1 to 4"},
		"expert_weights_norm":        {uint32(1), "got u32, want a bool"},
		"expert_weights_scale":       {uint32(1), "got u32, want a finite f32"},
		"hyper_connection.count":     {"four", "got string, want a whole number"},
		"swiglu_clamp_exp":           {[]float32{10, 9}, "got 9 of layer 1, want the same"},
		"expert_feed_forward_length": {nil, "got absent"},
		"hash_layer_count":           {int32(-1), "got -1, want at least 0"},
	} {
		keys := wholeKeys(cfg)
		at := slices.IndexFunc(keys, func(k fakegguf.Key) bool { return k.Name == ggufKeys+key })
		if keys[at].Value = c.value; c.value == nil {
			keys = slices.Delete(keys, at, at+1)
		}
		_, err := openWhole(t, keys, wholeTensors(cfg))
		assert.ErrorIs(t, err, model.ErrConfig, key)
		assert.ErrorContains(t, err, ggufKeys+key+": "+c.want, key)
	}
	keys := wholeKeys(cfg)
	tokens := fakegguf.Key{Name: "tokenizer.ggml.tokens", Value: make([]string, 97)}
	_, err = openWhole(t, append(keys, tokens), wholeTensors(cfg))
	assert.ErrorIs(t, err, model.ErrConfig)
	assert.ErrorContains(t, err, "tokenizer.ggml.tokens: got 97, want at most one for each of the 96 rows of token_embd.weight")
	tokens.Value = make([]string, 95) // the rows after them have no text
	_, err = openWhole(t, append(keys, tokens), wholeTensors(cfg))
	require.NoError(t, err)
	keys[len(keys)-1].Value = uint32(1 << 20)
	_, err = openWhole(t, keys, wholeTensors(cfg))
	assert.ErrorContains(t, err, "tokenizer.ggml.eos_token_id: got 1048576, want 0 to")
}
