package weights_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/random"
	"github.com/vkmla/vkmla/server/weights"
)

// block makes the tensors of a GGUF file of another file's draft block.
type block struct {
	t    *testing.T
	list []fakegguf.Tensor
}

// add adds a tensor of F32, F16, or Q8_0, which rounds.
func (b *block) add(name, format string, v []float32, shape ...int) {
	var data []byte
	le := binary.LittleEndian
	for ; format == "Q8_0" && len(v) > 0; v = v[32:] {
		most := 0.
		for _, x := range v[:32] {
			most = max(most, math.Abs(float64(x)))
		}
		d := numfmt.F16Decode(numfmt.F16Encode(float32(most / 127)))
		data = le.AppendUint16(data, numfmt.F16Encode(d))
		for _, x := range v[:32] {
			data = append(data, byte(int8(max(-127, min(127, math.Round(float64(x)/float64(max(d, 1e-30))))))))
		}
	}
	if format != "Q8_0" {
		for _, x := range v {
			if format == "F16" {
				data = le.AppendUint16(data, numfmt.F16Encode(x))
			} else {
				data = le.AppendUint32(data, math.Float32bits(x))
			}
		}
	}
	b.list = append(b.list, fakegguf.Tensor{Name: name, Format: format, Shape: shape, Data: data})
}

func rows(t *testing.T, n, k int, row func(int, []float32)) (all []float32) {
	t.Helper()
	all = make([]float32, n*k)
	for r := range n {
		row(r, all[r*k:][:k])
	}
	return all
}

func (b *block) matrix(name, format string, m *weights.Matrix) {
	b.add(name, format, values(b.t, m), m.N, m.K)
}

func values(t *testing.T, m *weights.Matrix) []float32 {
	return rows(t, m.N, m.K, func(r int, to []float32) { m.Row(to, r) })
}

func (b *block) hyper(name string, h *weights.Hyper) {
	b.matrix(name+"_fn.weight", "F32", &h.Fn)
	b.add(name+"_base.weight", "F32", h.Base, len(h.Base))
	b.add(name+"_scale.weight", "F32", h.Scale, len(h.Scale))
}

// experts packs codes and scales into blocks.
func (b *block) experts(name string, list []weights.Expert, of func(*weights.Expert) *weights.Matrix) {
	var data []byte
	first := of(&list[0])
	for i := range list {
		m := of(&list[i])
		require.Equal(b.t, weights.MXFP4, m.Format)
		for at, s := range m.Scales {
			codes := m.Data[16*at:][:16]
			data = append(data, s)
			for j := range 16 {
				data = append(data, codes[j/2]>>(4*(j%2))&15|codes[8+j/2]>>(4*(j%2))&15<<4)
			}
		}
	}
	b.list = append(b.list, fakegguf.Tensor{Name: name, Format: "MXFP4", Shape: []int{len(list), first.N, first.K}, Data: data})
}

// of converts a draft block to the layout of ds4: experts bit for bit, all else to one format.
func (b *block) of(w *weights.Model, attention []model.LayerWeights, format string) {
	own := w.Own()
	for k, l := range w.Layers[own:] {
		at, a := fmt.Sprintf("mtp.%d.", k), &attention[k]
		part := func(name string, m *model.Matrix, from, n int) {
			b.add(at+name, format, rows(b.t, n, m.K, func(r int, to []float32) { require.NoError(b.t, m.Row(from+r, to)) }), n, m.K)
		}
		vector := func(name string, v model.Vector) {
			data, err := v.Data.Bytes()
			require.NoError(b.t, err)
			n := v.Shape[0]
			b.add(at+name, "F32", rows(b.t, 1, n, func(_ int, to []float32) {
				for i := range to {
					if len(data) == 2*n {
						to[i] = numfmt.BF16Decode(binary.LittleEndian.Uint16(data[2*i:]))
					} else {
						to[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
					}
				}
			}), n)
		}
		part("attn_q_a.weight", &a.QKV, 0, w.Config.QRank)
		part("attn_kv.weight", &a.QKV, w.Config.QRank, 512)
		part("attn_q_b.weight", &a.QB, 0, a.QB.N)
		part("attn_output_a.weight", &a.OA, 0, a.OA.N)
		part("attn_output_b.weight", &a.OB, 0, a.OB.N)
		vector("attn_q_a_norm.weight", a.QNorm)
		vector("attn_kv_a_norm.weight", a.KVNorm)
		vector("attn_sinks.weight", a.Sink)
		b.hyper(at+"hc_attn", &l.AttnHC)
		b.hyper(at+"hc_ffn", &l.FFNHC)
		b.add(at+"attn_norm.weight", "F32", l.AttnNorm, len(l.AttnNorm))
		b.add(at+"ffn_norm.weight", "F32", l.FFNNorm, len(l.FFNNorm))
		b.matrix(at+"ffn_gate_inp.weight", format, &l.Gate)
		b.add(at+"exp_probs_b.bias", "F32", l.Bias, len(l.Bias))
		b.experts(at+"ffn_gate_exps.weight", l.Experts, func(e *weights.Expert) *weights.Matrix { return &e.W1 })
		b.experts(at+"ffn_up_exps.weight", l.Experts, func(e *weights.Expert) *weights.Matrix { return &e.W3 })
		b.experts(at+"ffn_down_exps.weight", l.Experts, func(e *weights.Expert) *weights.Matrix { return &e.W2 })
		b.matrix(at+"ffn_gate_shexp.weight", format, &l.Shared.W1)
		b.matrix(at+"ffn_up_shexp.weight", format, &l.Shared.W3)
		b.matrix(at+"ffn_down_shexp.weight", format, &l.Shared.W2)
	}
	d, last := w.Draft, fmt.Sprintf("mtp.%d.", len(w.Layers)-own-1)
	b.matrix("mtp.0.main_proj.weight", format, &d.Main)
	b.add("mtp.0.main_norm.weight", "F32", d.MainNorm, len(d.MainNorm))
	b.hyper(last+"hc_head", &d.HeadHC)
	b.add(last+"norm.weight", "F32", d.Norm, len(d.Norm))
	b.matrix(last+"markov_head.markov_w1.weight", "F16", &d.MarkovIn)
	b.matrix(last+"markov_head.markov_w2.weight", "F16", &d.MarkovOut)
	k := w.Config.Hidden + w.Config.MarkovRank
	b.add(last+"confidence_head.proj.weight", "F32", make([]float32, k), 1, k)
}

// keysOf are those of ds4's file.
func keysOf(c *weights.Config) (keys []fakegguf.Key) {
	var targets []int32
	for _, l := range c.DraftTargets {
		targets = append(targets, int32(l))
	}
	n := uint32(len(c.Layers) - c.Own())
	return []fakegguf.Key{{Name: "general.architecture", Value: "deepseek4-dspark"},
		{Name: "dspark.block_size", Value: uint32(c.DraftBlock)},
		{Name: "dspark.markov_rank", Value: uint32(c.MarkovRank)}, {Name: "dspark.n_layers", Value: n},
		{Name: "dspark.noise_token_id", Value: uint32(c.Noise)}, {Name: "dspark.stage_count", Value: n},
		{Name: "dspark.target_layer_ids", Value: targets}}
}

// asDFlash turns a file of ds4's into one of llama.cpp's.
func asDFlash(c *weights.Config, list []fakegguf.Tensor) (keys []fakegguf.Key, renamed []fakegguf.Tensor) {
	n := len(c.Layers) - c.Own()
	last := fmt.Sprintf("mtp.%d.", n-1)
	names := strings.NewReplacer("mtp.0.main_proj", "fc", "mtp.0.main_norm", "enc.output_norm", last+"norm", "output_norm",
		last+"hc_head", "output_hc", last+"markov_head.", "", last+"confidence_head.proj", "conf_proj", "mtp.", "blk.")
	for _, x := range list {
		x.Name = names.Replace(x.Name)
		renamed = append(renamed, x)
	}
	var targets []int32
	for _, l := range c.DraftTargets {
		targets = append(targets, int32(l)+1)
	}
	return []fakegguf.Key{{Name: "general.architecture", Value: "dflash"}, {Name: "dflash.block_count", Value: uint32(n)},
		{Name: "dflash.block_size", Value: uint32(c.DraftBlock)}, {Name: "dflash.target_layers", Value: targets},
		{Name: "dflash.expert_count", Value: uint32(c.Experts)}, {Name: "dflash.hyper_connection.count", Value: uint32(c.Streams)},
		{Name: "dflash.expert_weights_norm", Value: true}, {Name: "dflash.swiglu_clamp_exp", Value: []float32{c.Limit, c.Limit}},
		{Name: "tokenizer.ggml.mask_token_id", Value: uint32(c.Noise)}}, renamed
}

// drafting writes a model with a draft block in safetensors, and opens it.
func drafting(t *testing.T) (dir string, w *weights.Model, attention *model.Checkpoint) {
	t.Helper()
	c, err := random.Config("small", 2)
	require.NoError(t, err)
	dir = t.TempDir()
	_, err = random.Write(t.Context(), dir, random.WithDrafts(c), 5)
	require.NoError(t, err)
	w, err = weights.OpenWithDrafts(dir, "")
	require.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	attention, err = model.Open(dir, model.CheckpointOptions{Layers: []int{2, 3, 4}})
	require.NoError(t, err)
	t.Cleanup(func() { attention.Close() })
	return dir, w, attention
}

func write(t *testing.T, keys []fakegguf.Key, tensors []fakegguf.Tensor) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "d.gguf")
	require.NoError(t, os.WriteFile(path, fakegguf.Encode(keys, tensors), 0o666))
	return path
}

// A draft block in GGUF, of either layout, has the numbers of the same block in safetensors, and
// the configuration that it had there.
func TestDraftsOfGGUF(t *testing.T) {
	dir, want, attention := drafting(t)
	for _, format := range []string{"F32", "Q8_0"} {
		b := block{t: t}
		b.of(want, attention.Layers, format)
		keys, renamed := asDFlash(&want.Config, b.list)
		for _, file := range []string{write(t, keysOf(&want.Config), b.list), write(t, keys, renamed)} {
			w, err := weights.OpenWithDrafts(dir, file)
			require.NoError(t, err)
			assert.Equal(t, want.Config, w.Config)
			compare(t, format, want, w)
			a, err := model.Open(dir, model.CheckpointOptions{Layers: []int{2, 3, 4}, Drafts: file})
			require.NoError(t, err)
			for i, l := range a.Layers {
				of := &attention.Layers[i]
				for _, m := range [][2]*model.Matrix{{&of.QKV, &l.QKV}, {&of.QB, &l.QB}, {&of.OA, &l.OA}, {&of.OB, &l.OB}} {
					numbers := func(m *model.Matrix) []float32 {
						return rows(t, m.N, m.K, func(r int, to []float32) { require.NoError(t, m.Row(r, to)) })
					}
					near(t, format, m[0].Name, numbers(m[0]), numbers(m[1]))
				}
			}
			require.NoError(t, a.Close())
			require.NoError(t, w.Examine(t.Context(), slog.New(slog.DiscardHandler)))
			require.NoError(t, w.Intact())
			require.NoError(t, os.Truncate(file, 1000))
			assert.ErrorIs(t, w.Intact(), model.ErrCheckpoint, "the file is watched as the model's are")
			require.NoError(t, w.Close())
		}
	}
}

// near demands the same numbers, of Q8_0 within half a step.
func near(t *testing.T, format, name string, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want), name)
	for i := 0; i < len(want); i += 32 {
		within := 0.
		for _, x := range want[i:min(i+32, len(want))] {
			if format == "Q8_0" {
				within = max(within, math.Abs(float64(x))/127*.51+1e-7)
			}
		}
		for j, x := range want[i:min(i+32, len(want))] {
			if math.Abs(float64(x-got[i+j])) > within {
				require.Equal(t, x, got[i+j], "%s: %d", name, i+j)
			}
		}
	}
}

func compare(t *testing.T, format string, want, got *weights.Model) {
	t.Helper()
	same := func(format string, a, b *weights.Matrix) { near(t, format, a.Name, values(t, a), values(t, b)) }
	hyper := func(a, b *weights.Hyper) {
		same("F32", &a.Fn, &b.Fn)
		assert.Equal(t, [][]float32{a.Base, a.Scale}, [][]float32{b.Base, b.Scale})
	}
	require.Len(t, got.Layers, len(want.Layers))
	assert.Equal(t, want.Own(), got.Own())
	for i := range want.Layers {
		a, b, f := &want.Layers[i], &got.Layers[i], format
		if i < want.Own() {
			f = "the same file's"
		}
		hyper(&a.AttnHC, &b.AttnHC)
		hyper(&a.FFNHC, &b.FFNHC)
		assert.Equal(t, [][]float32{a.AttnNorm, a.FFNNorm, a.Bias}, [][]float32{b.AttnNorm, b.FFNNorm, b.Bias})
		assert.Equal(t, a.Table, b.Table)
		same(f, &a.Gate, &b.Gate)
		require.Len(t, b.Experts, len(a.Experts))
		for e := range a.Experts {
			same("MXFP4", &a.Experts[e].W1, &b.Experts[e].W1)
			same("MXFP4", &a.Experts[e].W2, &b.Experts[e].W2)
			same("MXFP4", &a.Experts[e].W3, &b.Experts[e].W3)
		}
		same(f, &a.Shared.W1, &b.Shared.W1)
		same(f, &a.Shared.W2, &b.Shared.W2)
		same(f, &a.Shared.W3, &b.Shared.W3)
	}
	a, b := want.Draft, got.Draft
	same(format, &a.Main, &b.Main)
	hyper(&a.HeadHC, &b.HeadHC)
	assert.Equal(t, [][]float32{a.MainNorm, a.Norm}, [][]float32{b.MainNorm, b.Norm})
	for _, m := range [][2]*weights.Matrix{{&a.MarkovIn, &b.MarkovIn}, {&a.MarkovOut, &b.MarkovOut}} {
		half := values(t, m[0])
		for i, x := range half {
			half[i] = numfmt.F16Decode(numfmt.F16Encode(x))
		}
		near(t, "F16", m[0].Name, half, values(t, m[1]))
	}
}

// What the block lacks, or has in another shape than the model, is named.
func TestDraftsOfGGUFRefused(t *testing.T) {
	dir, w, attention := drafting(t)
	b := block{t: t}
	b.of(w, attention.Layers, "F32")
	c := &w.Config
	flash, renamed := asDFlash(c, b.list)
	try := func(keys []fakegguf.Key, tensors []fakegguf.Tensor, is error, says string) {
		t.Helper()
		_, err := weights.OpenWithDrafts(dir, write(t, keys, tensors))
		assert.ErrorIs(t, err, is, says)
		assert.ErrorContains(t, err, says)
	}
	for _, f := range [][]fakegguf.Tensor{b.list, renamed} {
		keys := keysOf(c)
		if f[0].Name[0] == 'b' {
			keys = flash
		}
		for i, x := range f {
			missing := x.Name + ": got absent"
			switch {
			case strings.HasPrefix(x.Name, "mtp.1.") || strings.HasPrefix(x.Name, "blk.1.") || strings.HasPrefix(x.Name, "blk.2."),
				strings.HasPrefix(x.Name, "mtp.2.ffn"), strings.HasPrefix(x.Name, "mtp.2.hc_attn"),
				strings.HasPrefix(x.Name, "mtp.2.hc_ffn"):
				continue // as of the first layer
			case strings.Contains(x.Name, "attn_") && !strings.Contains(x.Name, "hc_") && !strings.HasSuffix(x.Name, ".attn_norm.weight"),
				strings.Contains(x.Name, "conf"):
				continue // attention's own are model.Open's, and confidence is not asked
			case x.Name == "markov_w1.weight":
				missing = "other than DSpark's"
			}
			try(keys, slices.Delete(slices.Clone(f), i, i+1), model.ErrCheckpoint, missing)
			if len(x.Shape) > 1 && !strings.Contains(x.Name, "markov_w1") {
				turned := slices.Clone(f)
				turned[i].Shape = slices.Clone(x.Shape)
				slices.Reverse(turned[i].Shape)
				if turned[i].Shape[len(x.Shape)-1]%32 == 0 || x.Format != "MXFP4" {
					try(keys, turned, model.ErrCheckpoint, "[")
				}
			}
		}
	}
	for _, name := range []string{"mtp.0.attn_kv.weight", "mtp.1.ffn_norm.weight", "mtp.2.hc_head_fn.weight"} {
		list := slices.Clone(b.list)
		x := &list[slices.IndexFunc(list, func(x fakegguf.Tensor) bool { return x.Name == name })]
		x.Data = slices.Clone(x.Data)
		binary.LittleEndian.PutUint32(x.Data[4:], math.Float32bits(float32(math.NaN())))
		w, err := weights.OpenWithDrafts(dir, write(t, keysOf(c), list))
		if err == nil { // what is small was read
			err = w.Examine(t.Context(), slog.New(slog.DiscardHandler))
			require.NoError(t, w.Close())
		}
		assert.ErrorIs(t, err, model.ErrCheckpoint)
		assert.ErrorContains(t, err, name)
		assert.ErrorContains(t, err, "want finite numbers")
	}
	try(keysOf(c), append(b.list[:len(b.list):len(b.list)], b.list[0]), model.ErrCheckpoint, b.list[0].Name)
	for key, values := range map[string]map[string]any{
		"dspark.noise_token_id": {"dspark.noise_token_id: got 512, want 0 to 511": uint32(512), "dspark.noise_token_id: got absent": nil},
		"dspark.markov_rank":    {"dspark.markov_rank: got 64, want the columns of mtp.2.markov_head.markov_w1.weight, 128": uint32(64)},
		"dspark.target_layer_ids": {"dspark.target_layer_ids: got [0 2], want 0 to 1": []int32{0, 2},
			"main_proj.weight": []int32{1}},
		"dspark.block_size":             {"dspark.block_size: got 100, want 1 to 64": uint32(100)},
		"tokenizer.ggml.mask_token_id":  {"tokenizer.ggml.mask_token_id: got -1, want 0 to 511": int32(-1)},
		"dflash.expert_count":           {"dflash.expert_count: got 16, want the model's, 8": uint32(16)},
		"dflash.hyper_connection.count": {"dflash.hyper_connection.count: got 2, want the model's, 4": uint32(2)},
		"dflash.expert_weights_norm":    {"dflash.expert_weights_norm: got 0, want the model's, 1": false},
		"dflash.swiglu_clamp_exp":       {"array of 2 f32 with 7, want the model's, 10": []float32{c.Limit, 7}},
	} {
		for want, value := range values {
			keys, list := keysOf(c), b.list
			if !strings.HasPrefix(key, "dspark") {
				keys, list = slices.Clone(flash), renamed
			}
			at := slices.IndexFunc(keys, func(k fakegguf.Key) bool { return k.Name == key })
			if keys[at].Value = value; value == nil {
				keys = slices.Delete(keys, at, at+1)
			}
			is := model.ErrConfig
			if strings.HasSuffix(want, "weight") {
				is = model.ErrCheckpoint
			}
			try(keys, list, is, want)
		}
	}
}
