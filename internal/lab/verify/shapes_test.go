package verify

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// given returns the outputs that the reference gives for a case with some inputs in another
// shape; those of a zero Array are left out.
func given(t *testing.T, c Case, other Arrays) Arrays {
	t.Helper()
	op, _ := Lookup(c.Op)
	c.In = maps.Clone(c.In)
	for name, a := range other {
		if c.In[name] = a; a.IsZero() {
			delete(c.In, name)
		}
	}
	want, err := op.Ref(c)
	require.NoError(t, err)
	return want
}

func equalArrays(t *testing.T, a, b Arrays) {
	t.Helper()
	for name := range a {
		assert.True(t, string(a[name].Data) == string(b[name].Data) && slices.Equal(a[name].Shape, b[name].Shape),
			"%s differs", name)
	}
}

// FlashMLA takes indices of [T, 1, width], and no lengths where a row has its whole width.
func TestDecodeWithoutLengths(t *testing.T) {
	op, _ := Lookup("flashmla_sparse_decode")
	c := op.RandomCases(5)[1]
	idx := c.In["swa_indices"]
	rows := idx.Dim(0)
	want := given(t, c, Arrays{"swa_lens": vectors.FromI32(slices.Repeat([]int32{int32(idx.Dim(1))}, rows), rows)})
	equalArrays(t, want, given(t, c, Arrays{"swa_lens": {}, "swa_indices": reshaped(idx, rows, 1, idx.Dim(1))}))
}

// DeepGEMM takes queries of [R, next, H, D], a row of the block table for each request.
func TestLogitsOfSeveralTokens(t *testing.T) {
	for _, name := range []string{"indexer_logits_fp8", "indexer_logits_mxfp4"} {
		op, _ := Lookup(name)
		cases := op.RandomCases(5)
		c := cases[slices.IndexFunc(cases, func(c Case) bool { return c.About == "decode of two tokens a request" })]
		other := Arrays{"token_to_req": {}, "context_lens": reshaped(c.In["context_lens"], 3, 2)}
		for _, n := range []string{"q_fp8", "q_packed", "q_scale"} {
			if a, ok := c.In[n]; ok {
				other[n] = reshaped(a, 3, 2, a.Dim(1), a.Dim(2))
			}
		}
		equalArrays(t, given(t, c, nil), given(t, c, other))
	}
}

// Upstream's buffers of pages, requests and picks have room for more than a step needs.
func TestLongerBuffers(t *testing.T) {
	for _, x := range []struct {
		op     string
		longer []string
	}{
		{"compute_global_topk_indices_and_lens", []string{"token_to_req", "is_valid_token"}}, {"combine_topk_swa_indices", []string{"topk_indices"}},
		{"dequantize_and_gather_k_cache", []string{"block_table"}}, {"get_compressed_slot_mapping", []string{"block_table"}},
	} {
		op, _ := Lookup(x.op)
		c := op.RandomCases(6)[2]
		want := given(t, c, nil)
		other := Arrays{}
		for _, n := range x.longer {
			a := c.In[n].Clone()
			a.Data, a.Shape[0] = append(a.Data, vectors.Filled(0xA5, a.Type, append([]int{3}, a.Shape[1:]...)...).Data...), a.Shape[0]+3
			other[n] = a
		}
		c.Want = want
		equalArrays(t, want, given(t, c, other))
	}
}

func TestAlike(t *testing.T) {
	got := Arrays{"out": vectors.New(vectors.U8, 3, 4), "lse": vectors.New(vectors.U8, 1, 2)}
	want := alike(Arrays{"out": vectors.New(vectors.U8, 3, 1, 4), "lse": vectors.New(vectors.U8, 2, 2), "more": vectors.New(vectors.U8, 1)}, got)
	assert.Equal(t, "uint8 [3, 4]uint8 [2, 2]uint8 [1]", want["out"].String()+want["lse"].String()+want["more"].String())
}

// What the portable kernel gave for the inputs of a prefill is compared, too.
func TestPrefillWithoutSink(t *testing.T) {
	op, _ := Lookup("flashmla_sparse_prefill")
	c := op.RandomCases(5)[1] // with sinks and lengths, some of them 0
	got := given(t, c, nil)
	for name, a := range given(t, c, Arrays{"attn_sink": {}}) {
		got[withoutSink+name] = a
	}
	want := maps.Clone(got)
	for _, name := range []string{"max_logits", "lse"} {
		v := got[withoutSink+name].F32()
		for i := range v {
			if special(float64(v[i])) {
				v[i] = -6.931472e29
			}
		}
		want[withoutSink+name] = vectors.FromF32(v, got[name].Shape...)
	}
	r := op.Compare(c, got, want)
	assert.True(t, r.Pass, "%+v", r)
	for _, name := range []string{"out", "max_logits", "lse"} {
		require.NotEqual(t, string(got["out"].Data), string(got[withoutSink+"out"].Data), "sinks make no difference")
		bad := maps.Clone(got)
		bad[withoutSink+name] = vectors.FromF32(slices.Repeat([]float32{9}, got[name].Len()), got[name].Shape...)
		assert.False(t, op.Compare(c, bad, want).Pass, "another %s passes", name)
	}
}
