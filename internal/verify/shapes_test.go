package verify

import (
	"maps"
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/vectors"
)

// given is the outputs that the reference gives for a case with some inputs in another
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
	if err != nil {
		t.Fatal(err)
	}
	return want
}

func equalArrays(t *testing.T, a, b Arrays) {
	t.Helper()
	for name := range a {
		if string(a[name].Data) != string(b[name].Data) || !slices.Equal(a[name].Shape, b[name].Shape) {
			t.Errorf("%s differs", name)
		}
	}
}

// FlashMLA takes indices of [T, 1, width], and no lengths where a row has its whole width.
func TestDecodeWithoutLengths(t *testing.T) {
	op, _ := Lookup("flashmla_sparse_decode")
	c := op.RandomCases(5)[1]
	idx := c.In["swa_indices"]
	rows := idx.Dim(0)
	want := given(t, c, Arrays{"swa_lens": vectors.FromI32(vectorsI32(rows, int32(idx.Dim(1))), rows)})
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
