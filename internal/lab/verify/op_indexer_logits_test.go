package verify

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// A recorded kernel sums heads with less than f32: where they cancel, the row's largest
// logit says nothing about how close two kernels can be.
func TestLogitsThatCancel(t *testing.T) {
	op, _ := Lookup("indexer_logits_fp8")
	c := op.RandomCases(5)[0] // one entry
	const one = 0x38          // the code of 1; a scale of such bytes is some positive number
	q, pool := vectors.Filled(one, vectors.U8, 2, 2, 128), vectors.Filled(one, vectors.U8, c.In["cache"].Shape...)
	c.In = Arrays{"q_fp8": q, "cache": pool, "context_lens": vectors.FromI32([]int32{1, 1}, 2), "block_table": vectors.FromI32([]int32{0, 0}, 2, 1),
		"weights": vectors.FromF32([]float32{1, -0.999, 1, 1}, 2, 2)}
	want, err := op.Ref(c)
	require.NoError(t, err)
	off := func(share float32) Arrays { // of the terms' magnitudes, 2000 times the logit
		v := want["logits"].F32()
		return Arrays{"logits": vectors.FromF32([]float32{v[0] * (1 + 1999*share), v[1]}, 2, 1)}
	}
	c.Source = "a folder"
	r := op.Compare(c, off(1e-4), want)
	assert.True(t, r.Pass, "what the terms explain: %+v", r)
	assert.False(t, op.Compare(c, off(1e-3), want).Pass, "a logit off by a thousandth of its terms passes")
	c.Source = "random"
	assert.False(t, op.Compare(c, off(1e-4), want).Pass, "a random case passes")
}
