package model

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/random"
	"github.com/vkmla/vkmla/server/weights"
)

// drafting writes a small random model with a draft block.
func drafting(t *testing.T, layers int) (dir string) {
	t.Helper()
	c, err := random.Config("tiny", layers)
	require.NoError(t, err)
	dir = t.TempDir()
	_, err = random.Write(t.Context(), dir, random.WithDrafts(c), 3)
	require.NoError(t, err)
	return dir
}

// draftingGGUF writes one in GGUF, the block in a file of its own.
func draftingGGUF(t *testing.T, layers int, seed uint64) (dir, draft string) {
	t.Helper()
	c, err := random.Config("tiny", layers)
	require.NoError(t, err)
	dir = t.TempDir()
	_, err = random.WriteGGUF(t.Context(), dir, "mxfp4", random.WithDrafts(c), seed)
	require.NoError(t, err)
	return dir, filepath.Join(dir, "draft", "draft.gguf")
}

// TestDraftBlock holds a draft block against its definition in float64, from what the model's
// layers left of each token to the drafts, layer by layer.
//
// Source: DSparkBlock and Transformer.forward in DeepSeek-V4-Flash-DSpark's inference/model.py.
func TestDraftBlock(t *testing.T) {
	t.Run("safetensors", func(t *testing.T) { testDraftBlock(t, drafting(t, 0), "") })
	t.Run("GGUF", func(t *testing.T) {
		dir, draft := draftingGGUF(t, 0, 9)
		testDraftBlock(t, dir, draft)
	})
}

func testDraftBlock(t *testing.T, dir, draft string) {
	m, err := Open(t.Context(), testkit.Device(t), dir, Options{MaxTokens: 200, MaxSessions: 2, MaxStep: 96, Drafts: 5, Draft: draft})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	c, own, d := &m.Config, m.Weights.Own(), m.Config.Hidden
	require.Equal(t, []int{3, 6}, []int{own, len(m.Weights.Layers)})
	s, err := m.NewSequence()
	require.NoError(t, err)
	defer s.Close()
	r := &draftReference{w: m.Weights, values: attentionValues(t, dir, draft)}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{9, 96, 40} {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = rng.Int32N(int32(c.Vocab))
		}
		left := make([][][]float64, own) // of each layer, of each token
		step, err := m.engine.Begin(t.Context(), pipeline.Chunk{Session: s.session, Tokens: n})
		require.NoError(t, err)
		parts := []pipeline.Chunk{{Session: s.session, Tokens: n}}
		_, err = m.forward(t.Context(), ids, nil, func(layer int, x, f []float32) error {
			if layer > 0 && layer <= own { // nothing has changed since the layer before
				left[layer-1] = r.means(m.streams.Y)
			}
			return m.attend(t.Context(), step, parts, layer, x, f)
		})
		require.NoError(t, err)
		require.NoError(t, step.Commit())
		r.sees(t, left, m.x[:n*d])

		newest := append([]int32{rng.Int32N(int32(c.Vocab))}, slices.Repeat([]int32{c.Noise}, c.DraftBlock-1)...)
		parts[0].Tokens, parts[0].Draft = c.DraftBlock, true
		step, err = m.engine.Begin(t.Context(), parts...)
		require.NoError(t, err)
		var before []float32
		drafts, err := m.block(t.Context(), newest, func(layer int, x, f []float32) error {
			if layer > own {
				r.layer(t, layer-1, before, m.streams.Y)
			} else {
				r.begins(t, newest, m.streams.Y)
			}
			before = slices.Clone(m.streams.Y)
			return m.attend(t.Context(), step, parts, layer, x, f)
		})
		require.NoError(t, err)
		require.NoError(t, step.Commit())
		r.layer(t, len(m.Weights.Layers)-1, before, m.streams.Y)
		r.drafts(t, newest[0], m.streams.Y, m.logits, drafts[0])
		got, err := m.Draft(t.Context(), Chunk{Sequence: s, Tokens: newest[:1]})
		require.NoError(t, err)
		assert.Equal(t, drafts, got)
	}
	assert.Equal(t, 145, s.session.Len(), "drafts are not kept")
}

// draftReference computes a draft block plainly.
type draftReference struct {
	w       *weights.Model
	values  map[string][]float32
	context []float32 // what the block keeps of all tokens so far
}

func (r *draftReference) means(y []float32) (all [][]float64) {
	n, d := r.w.Config.Streams, r.w.Config.Hidden
	for token := range slices.Chunk(y, n*d) {
		mean := make([]float64, d)
		for i, v := range token {
			mean[i%d] += float64(v) / float64(n)
		}
		all = append(all, mean)
	}
	return all
}

// sees compares what the block is given of tokens, and keeps it.
func (r *draftReference) sees(t *testing.T, left [][][]float64, got []float32) {
	t.Helper()
	var states [][][]float64
	for _, l := range r.w.Config.DraftTargets {
		states = append(states, left[l])
	}
	var want []float32
	for _, x := range formula.States(r.w.Config.Eps, all(&r.w.Draft.Main), r.w.Draft.MainNorm, states...) {
		want = append(want, narrowed(x)...)
	}
	assert.Less(t, off(got, want), 1e-2, "what the block keeps of tokens")
	r.context = append(r.context, got...)
}

// begins compares the streams that a block begins with.
func (r *draftReference) begins(t *testing.T, ids []int32, y []float32) {
	t.Helper()
	for i, streams := range r.streams(y) {
		for _, s := range streams {
			assert.Equal(t, row(&r.w.Embed, int(ids[i])), s)
		}
	}
}

// layer compares the streams [T, n, D] after a layer of the block with what those before it give.
func (r *draftReference) layer(t *testing.T, layer int, before, after []float32) {
	t.Helper()
	l, wants := &r.w.Layers[layer], [2][][][]float64{}
	for other := range wants {
		streams := r.streams(before)
		r.around(streams, &l.AttnHC, l.AttnNorm, func(x [][]float64) (f [][]float64) {
			var in []float32
			for _, v := range x {
				in = append(in, narrowed(v)...)
			}
			q := formula.NewSequence(r.w.Config.Config, formula.Numerics{Exact: true, Records: model.RecordsV4}, r.values)
			q.Context(layer, r.context)
			for _, row := range q.Draft(layer, len(r.context)/r.w.Config.Hidden-1, in) {
				f = append(f, wide(row.Out))
			}
			return f
		})
		r.around(streams, &l.FFNHC, l.FFNNorm, func(x [][]float64) (f [][]float64) {
			for _, v := range x {
				f = append(f, r.experts(l, v, other == 1))
			}
			return f
		})
		wants[other] = streams
	}
	for i, got := range r.streams(after) {
		wrong := math.Inf(1)
		for _, want := range wants {
			wrong = min(wrong, off(narrowed(slices.Concat(got...)), narrowed(slices.Concat(want[i]...))))
		}
		assert.Less(t, wrong, 1.8e-2, "token %d after layer %d", i, layer)
	}
}

func (r *draftReference) streams(y []float32) (all [][][]float64) {
	n, d := r.w.Config.Streams, r.w.Config.Hidden
	for token := range slices.Chunk(y, n*d) {
		var streams [][]float64
		for stream := range slices.Chunk(token, d) {
			streams = append(streams, wide(stream))
		}
		all = append(all, streams)
	}
	return all
}

// drafts compares the logits of a block after a token, and its drafts.
func (r *draftReference) drafts(t *testing.T, newest int32, streams, logits []float32, drafts []int32) {
	t.Helper()
	w, c := r.w, &r.w.Config
	var want []float32
	for _, y := range r.streams(streams) {
		m, u := r.mix(y, &w.Draft.HeadHC), make([]float64, c.Hidden)
		for k, stream := range y {
			p := sigmoid(m[k]*float64(w.Draft.HeadHC.Scale[0])+float64(w.Draft.HeadHC.Base[k])) + float64(c.HyperEps)
			for i, v := range stream {
				u[i] += p * v
			}
		}
		want = append(want, narrowed(times(&w.Head, r.norm(u, w.Draft.Norm)))...)
	}
	require.Len(t, drafts, c.DraftBlock)
	assert.Less(t, off(logits, want), 5e-3, "logits")
	last := newest
	for i, id := range drafts { // of the logits that were computed: others have others largest
		bias := times(&w.Draft.MarkovOut, row(&w.Draft.MarkovIn, int(last)))
		best := 0
		for v := range bias {
			bias[v] += float64(logits[i*c.Vocab+v])
			if bias[v] > bias[best] {
				best = v
			}
		}
		assert.EqualValues(t, best, id, "draft %d", i)
		last = id
	}
}

// around takes streams [block][n][D] through a sub-layer.
func (r *draftReference) around(streams [][][]float64, h *weights.Hyper, norm []float32, f func(x [][]float64) [][]float64) {
	n, eps := r.w.Config.Streams, float64(r.w.Config.HyperEps)
	var x, post [][]float64
	var comb [][][]float64
	for _, y := range streams {
		m := r.mix(y, h)
		at := func(i, scale int) float64 { return m[i]*float64(h.Scale[scale]) + float64(h.Base[i]) }
		u, p, a := make([]float64, len(y[0])), make([]float64, n), make([][]float64, n)
		for k := range n {
			for i, v := range y[k] {
				u[i] += (sigmoid(at(k, 0)) + eps) * v
			}
			p[k] = 2 * sigmoid(at(n+k, 1))
			sum := 0.0
			for j := range n {
				a[k] = append(a[k], math.Exp(at(2*n+k*n+j, 2)))
				sum += a[k][j]
			}
			for j := range n {
				a[k][j] = a[k][j]/sum + eps
			}
		}
		for step := range r.w.Config.SinkhornSteps {
			for k := 0; k < n && step > 0; k++ {
				sum := eps
				for j := range n {
					sum += a[k][j]
				}
				for j := range n {
					a[k][j] /= sum
				}
			}
			for j := range n {
				sum := eps
				for k := range n {
					sum += a[k][j]
				}
				for k := range n {
					a[k][j] /= sum
				}
			}
		}
		x, post, comb = append(x, r.norm(u, norm)), append(post, p), append(comb, a)
	}
	for t, out := range f(x) {
		mixed := make([][]float64, n)
		for j := range mixed {
			for i, v := range out {
				sum := post[t][j] * v
				for k := range n {
					sum += comb[t][k][j] * streams[t][k][i]
				}
				mixed[j] = append(mixed[j], sum)
			}
		}
		streams[t] = mixed
	}
}

func (r *draftReference) mix(y [][]float64, h *weights.Hyper) []float64 {
	all := slices.Concat(y...)
	m, squares := times(&h.Fn, all), 0.0
	for _, v := range all {
		squares += v * v
	}
	for i := range m {
		m[i] /= math.Sqrt(squares/float64(len(all)) + float64(r.w.Config.Eps))
	}
	return m
}

func (r *draftReference) norm(x []float64, w []float32) (y []float64) {
	squares := 0.0
	for _, v := range x {
		squares += v * v
	}
	for i, v := range x {
		y = append(y, v/math.Sqrt(squares/float64(len(x))+float64(r.w.Config.Eps))*float64(w[i]))
	}
	return y
}

// experts computes the experts of a token. Of two that are nearly the same choice, bf16 may take
// either: other takes the second.
func (r *draftReference) experts(l *weights.Layer, x []float64, other bool) []float64 {
	c := &r.w.Config
	scores, order := times(&l.Gate, x), make([]int, c.Experts)
	for e, v := range scores {
		scores[e], order[e] = math.Sqrt(math.Log1p(math.Exp(v))), e
	}
	choice := func(e int) float64 { return scores[e] + float64(l.Bias[e]) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(choice(b), choice(a)) })
	if last := c.PerToken - 1; other && choice(order[last])-choice(order[last+1]) < 4e-3 {
		order[last] = order[last+1]
	}
	sum := 0.0
	for _, e := range order[:c.PerToken] {
		sum += scores[e]
	}
	f := make([]float64, len(x))
	add := func(e *weights.Expert, v float64) {
		a, b, limit := times(&e.W1, x), times(&e.W3, x), float64(c.Limit)
		for i := range a {
			g := min(a[i], limit)
			a[i] = g * sigmoid(g) * min(max(b[i], -limit), limit) * v
		}
		for i, y := range times(&e.W2, a) {
			f[i] += y
		}
	}
	for _, e := range order[:c.PerToken] {
		add(&l.Experts[e], scores[e]/sum*float64(c.Factor))
	}
	add(&l.Shared, 1)
	return f
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func row(m *weights.Matrix, n int) []float64 {
	v := make([]float32, m.K)
	m.Row(v, n)
	return wide(v)
}

func all(m *weights.Matrix) (v []float32) {
	for n := range m.N {
		v = append(v, narrowed(row(m, n))...)
	}
	return v
}

func times(m *weights.Matrix, x []float64) (y []float64) {
	for n := range m.N {
		sum := 0.0
		for i, v := range row(m, n) {
			sum += v * x[i]
		}
		y = append(y, sum)
	}
	return y
}

func wide(x []float32) (y []float64) {
	for _, v := range x {
		y = append(y, float64(v))
	}
	return y
}

func narrowed(x []float64) (y []float32) {
	for _, v := range x {
		y = append(y, float32(v))
	}
	return y
}

// off is the length of a difference beside that of what is wanted.
func off(got, want []float32) float64 {
	var a, b float64
	for i, v := range want {
		a, b = a+math.Pow(float64(got[i]-v), 2), b+float64(v)*float64(v)
	}
	return math.Sqrt(a / b)
}

// released spells a name of attention in GGUF as released checkpoints do.
var released = strings.NewReplacer("attn_q_a.", "attn.wq_a.", "attn_q_a_norm.", "attn.q_norm.", "attn_q_b.", "attn.wq_b.",
	"attn_kv.", "attn.wkv.", "attn_kv_a_norm.", "attn.kv_norm.", "attn_output_a.", "attn.wo_a.", "attn_output_b.", "attn.wo_b.",
	"attn_sinks.weight", "attn.attn_sink")

// attentionValues reads the numbers of the attention of layers that draft.
func attentionValues(t *testing.T, dir, draft string) map[string][]float32 {
	t.Helper()
	tensors, err := model.OpenTensors(dir, draft)
	require.NoError(t, err)
	defer tensors.Close()
	values := map[string][]float32{}
	for _, stored := range tensors.Names() {
		name := released.Replace(stored)
		if !strings.HasPrefix(name, "mtp.") || !strings.Contains(name, ".attn.") || strings.HasSuffix(name, ".scale") {
			continue
		}
		x, err := tensors.Tensor(stored)
		require.NoError(t, err)
		var v []float32
		switch x.DType {
		case "Q8_0":
			f := gguf.FormatNamed(x.DType)
			v = make([]float32, len(x.Data)/f.Bytes*f.Values)
			f.Decode(v, x.Data)
		case "F32":
			for i := 0; i < len(x.Data); i += 4 {
				v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(x.Data[i:])))
			}
		case "BF16":
			for i := 0; i < len(x.Data); i += 2 {
				v = append(v, numfmt.BF16Decode(binary.LittleEndian.Uint16(x.Data[i:])))
			}
		default:
			scales, err := tensors.Tensor(strings.TrimSuffix(name, "weight") + "scale")
			require.NoError(t, err)
			k := x.Shape[1]
			for i, code := range x.Data {
				scale := numfmt.UE8M0Scale(scales.Data[i/k/128*scales.Shape[1]+i%k/128])
				v = append(v, numfmt.E4M3Decode(code)*scale)
			}
		}
		values[name] = v
	}
	return values
}

// TestDraftsRefused opens no model that cannot draft, and says why.
func TestDraftsRefused(t *testing.T) {
	c, err := random.Config("small", 2)
	require.NoError(t, err)
	plain := t.TempDir()
	_, err = random.Write(t.Context(), plain, c, 1)
	require.NoError(t, err)
	inGGUF, draft := draftingGGUF(t, 2, 0)
	narrow, _ := draftingGGUF(t, 1, 0)
	wide := t.TempDir()
	c, err = random.Config("small", 2)
	require.NoError(t, err)
	_, err = random.Write(t.Context(), wide, c, 1)
	require.NoError(t, err)
	for _, x := range []struct {
		dir, draft, want string
		drafts           int
	}{
		{plain, "", "dspark_block_size: got absent", 5},
		{inGGUF, "", "--drafts: got a GGUF file", 5},
		{drafting(t, 2), "", "--drafts: got 6", 6},
		{inGGUF, draft, "--drafts: got 6", 6},
		{narrow, draft, "dspark.target_layer_ids: got [0 1], want 0 to 0", 0},
		{wide, draft, "draft.gguf: mtp.0.", 0},
		{inGGUF, inGGUF, "general.architecture: got deepseek4, a model", 0},
		{draft, "", "general.architecture: got deepseek4-dspark, a draft block", 0},
	} {
		o := Options{MaxTokens: 9, MaxSessions: 1, MaxStep: 9, Drafts: x.drafts, Draft: x.draft}
		_, err := Open(t.Context(), testkit.Device(t), x.dir, o)
		assert.ErrorContains(t, err, x.want)
	}
}

// TestDraftForms holds what other forms draft against what the processor does, after prompts that
// decide it: all go on with the same token.
func TestDraftForms(t *testing.T) {
	t.Run("safetensors", func(t *testing.T) { testDraftForms(t, drafting(t, 2), "") })
	t.Run("GGUF", func(t *testing.T) {
		dir, draft := draftingGGUF(t, 2, 0)
		testDraftForms(t, dir, draft)
	})
}

func testDraftForms(t *testing.T, dir, draft string) {
	const n = 12
	drafts := func(o Options) (all [][]int32) {
		o.MaxTokens, o.MaxSessions, o.MaxStep, o.Drafts, o.Draft = 160, n, 32, 5, draft
		if o.Offload {
			o.Memory = roomFor(t, dir, o, 3)
		}
		m, err := Open(t.Context(), testkit.Device(t), dir, o)
		require.NoError(t, err)
		defer m.Close()
		rng := rand.New(rand.NewPCG(4, 4))
		var chunks []Chunk
		for i := range n {
			s, err := m.NewSequence()
			require.NoError(t, err)
			defer s.Close()
			for range 1 + i {
				_, err = m.Step(t.Context(), Chunk{Sequence: s, Tokens: []int32{rng.Int32N(264), rng.Int32N(264)}})
				require.NoError(t, err)
			}
			chunks = append(chunks, Chunk{Sequence: s, Tokens: []int32{7}})
		}
		all, err = m.Draft(t.Context(), chunks...)
		require.NoError(t, err)
		for i, c := range chunks {
			alone, err := m.Draft(t.Context(), c)
			require.NoError(t, err)
			assert.Equal(t, all[i], alone[0], "alone")
		}
		return all
	}
	want, others := drafts(Options{}), 0
	for form, o := range map[string]Options{"device": {GPU: true}, "offload": {Offload: true}} {
		same := 0
		for i, got := range drafts(o) {
			for k, id := range got {
				if want[i][k] == id {
					same++
				}
			}
		}
		t.Logf("%s: %d of %d drafts are the same", form, same, 5*n)
		assert.GreaterOrEqual(t, same, 5*n*95/100, form)
	}
	for i := range want {
		for k, id := range want[i] {
			if want[(i+1)%n][k] == id {
				others++
			}
		}
	}
	assert.LessOrEqual(t, others, 5*n*2/3, "drafts that are those after another prompt")
}
