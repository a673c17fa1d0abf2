package verify

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// TestOpsReject shows for every operation that its own reference passes, and
// that an output that was never written, is not there, or has another shape does
// not.
func TestOpsReject(t *testing.T) {
	for _, op := range All() {
		t.Run(op.Name, func(t *testing.T) {
			c, want := typical(t, op)
			r := op.Compare(c, want, want)
			assert.True(t, r.Pass && r.Class == op.Class, "the reference against itself: %+v", r)
			for name, a := range want {
				poison := byte(poisonOther)
				if a.Type == vectors.U16 || a.Type == vectors.F32 {
					poison = poisonFloat
				}
				for what, bad := range map[string]Array{
					"unwritten": vectors.Filled(poison, a.Type, a.Shape...),
					"absent":    {},
					"reshaped":  {Type: a.Type, Shape: append([]int{1}, a.Shape...), Data: a.Data},
				} {
					got := Arrays{}
					for n, x := range want {
						got[n] = x
					}
					got[name] = bad
					r := op.Compare(c, got, want)
					assert.False(t, r.Pass, "%s %s passes: %+v", what, name, r)
				}
			}
		})
	}
}

// A case that lacks something is refused, and told what.
func TestOpsRefuse(t *testing.T) {
	for _, x := range []struct{ op, array, param, says string }{
		{"get_compressed_slot_mapping", "", "compress_ratio", `no parameter "compress_ratio"`},
		{"dequantize_and_gather_k_cache", "", "offset", `no parameter "offset"`},
		{"flashmla_sparse_decode", "extra_cache", "", `no input array "extra_cache"`},
		{"indexer_logits_fp8", "", "columns", `no output array "logits"`},
	} {
		i := slices.IndexFunc(All(), func(op Op) bool { return op.Name == x.op })
		op := All()[i]
		for _, c := range op.RandomCases(11) {
			if x.array != "" && c.In[x.array].IsZero() {
				continue
			}
			delete(c.In, x.array)
			delete(c.Params, x.param)
			_, err := op.Ref(c)
			require.ErrorIs(t, err, vectors.ErrFormat, "%s.%s", x.op, c.Name)
			assert.Contains(t, err.Error(), x.says, "%s.%s", x.op, c.Name)
			break
		}
	}
}

// typical returns an operation's random case with the most output of at most a
// mebibyte from a small input, and what its reference makes of it.
func typical(t *testing.T, op Op) (Case, Arrays) {
	t.Helper()
	size := func(as Arrays) (n int) {
		for _, a := range as {
			n += len(a.Data)
		}
		return n
	}
	var best Case
	var want Arrays
	for _, c := range op.RandomCases(11) {
		if size(c.In) > 1<<18 {
			continue
		}
		w, err := op.Ref(c)
		require.NoError(t, err)
		if want == nil || size(w) > size(want) && size(w) <= 1<<20 {
			best, want = c, w
		}
	}
	if want == nil {
		t.Skip("all random cases are large")
	}
	best.Want = want
	return best, want
}
