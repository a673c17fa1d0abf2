package verify

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/projection"
)

// A step away from what is wanted is an error, in codes that turn and in those that do
// not, in scales of either layout and after the last token; the sign of a zero that
// turns is none.
func TestInverseQuantJudge(t *testing.T) {
	op, _ := Lookup("fused_inv_rope_fp8_quant")
	var c Case
	for _, c = range op.RandomCases(3) {
		if c.Name == "t17_g3_p7_of21" {
			break
		}
	}
	want, err := op.Ref(c)
	require.NoError(t, err)
	change := func(name string, at int, by byte) Arrays {
		got := Arrays{}
		for n, a := range want {
			got[n] = a.Clone()
		}
		got[name].Data[at] += by
		return got
	}
	head := want["fp8_fp32"].Data
	for d := range cache.D {
		if head[d]&0x7F > 0x70 || head[d]&0x7F == 0 {
			continue // a neighbour may be the sign, or beyond the numbers
		}
		if r := op.Compare(c, change("fp8_fp32", d, 1), want); r.Pass {
			t.Fatalf("code %d off by one passes: %+v", d, r)
		}
	}
	for name, at := range map[string]int{
		"scale_fp32": 2, "scale_packed_ue8m0": 1, "fp8_packed_ue8m0": 7,
	} {
		r := op.Compare(c, change(name, at, 1), want)
		assert.False(t, r.Pass, "byte %d of %s off by one passes: %+v", at, name, r)
	}
	r := op.Compare(c, change("scale_fp32", 4*17+1, 1), want)
	assert.False(t, r.Pass, "a scale behind the tokens passes: %+v", r)
	q := quantBlock{make([]byte, projection.BlockDim), 85}
	zeros := cache.CompressedEntry{Value: make([]float64, projection.BlockDim), Tol: make([]float64, projection.BlockDim)}
	q.codes[127] = 0x80
	assert.NotEmpty(t, q.judge(zeros, 0), "a negative zero for one that does not turn passes")
	zeros.Tol[127] = flushed
	assert.Empty(t, q.judge(zeros, 0), "the sign of a zero")
}
