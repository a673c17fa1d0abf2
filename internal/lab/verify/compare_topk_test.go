package verify

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// Recorded picks are held against the logits as computed ones are, in whatever order.
func TestRecordedTopK(t *testing.T) {
	c := Case{Source: "a folder", Params: map[string]any{"k": 2}, In: Arrays{"logits": vectors.FromF32([]float32{5, 1, 4}, 1, 3), "lengths": vectors.FromI32([]int32{3}, 1)}}
	picks := func(a, b int32) Arrays { return Arrays{"topk_indices": vectors.FromI32([]int32{a, b}, 1, 2)} }
	compare := compareBy(ClassSet, fields, compareIndexerTopK)
	r := compare(c, picks(0, 2), picks(2, 0))
	assert.True(t, r.Pass, "%+v", r)
	r = compare(c, picks(0, 2), picks(0, 1))
	assert.False(t, r.Pass ||
		r.Detail != "recorded topk_indices: 1 of 1 rows differ, row 0: selects 1 where 4 is larger", "%+v", r)
}

func TestTopK(t *testing.T) {
	logits := vectors.FromF32([]float32{5, 1, 4, 4 + 1e-6, 2, -inf}, 1, 6)
	for _, c := range []struct {
		name   string
		length int32
		got    []int32
		pass   bool
	}{
		{"in order", 5, []int32{0, 3, 2}, true},
		{"other order", 5, []int32{2, 0, 3}, true},
		{"a tie decided otherwise", 5, []int32{0, 2}, true},
		{"a smaller value", 5, []int32{0, 4}, false},
		{"all of a short row", 2, []int32{1, 0, -1}, true},
		{"too few", 5, []int32{0, 3, -1}, false},
		{"too many", 2, []int32{0, 1, 2}, false},
		{"twice", 5, []int32{0, 0}, false},
		{"beyond the length", 4, []int32{0, 4}, false},
		{"negative", 5, []int32{0, -7}, false},
		{"minus infinity", 6, []int32{0, 1, 2, 3, 4, 5}, true},
		{"empty row", 0, []int32{-1, -1}, true},
	} {
		r := NewComparison(ClassSet).TopK("x", logits, []int32{c.length}, vectors.FromI32(c.got, 1, len(c.got))).Result()
		require.Equal(t, c.pass, r.Pass, "%s: %+v", c.name, r)
		assert.Equal(t, c.pass, r.Error == 0, "%s: %+v", c.name, r)
	}
	infinite := vectors.FromF32([]float32{1, inf, 2}, 1, 3)
	assert.False(t, NewComparison(ClassSet).TopK("x", infinite, []int32{3}, vectors.FromI32([]int32{2}, 1, 1)).Result().Pass,
		"a number in the place of infinity")
	none := float32(math.NaN())
	mixed := vectors.FromF32([]float32{none, 1, -inf, none}, 1, 4)
	r := NewComparison(ClassSet).TopK("x", mixed, []int32{4}, vectors.FromI32([]int32{0, 1, 2, 3}, 1, 4)).Result()
	assert.True(t, r.Pass, "all of a row with NaNs: %+v", r)
	assert.False(t, NewComparison(ClassSet).TopK("x", mixed, []int32{4}, vectors.FromI32([]int32{0}, 1, 1)).Result().Pass,
		"NaN in the place of a number")
	assert.False(t, NewComparison(ClassSet).TopK("x", logits, nil, vectors.FromI32([]int32{0}, 1, 1)).Result().Pass,
		"no lengths")
}
