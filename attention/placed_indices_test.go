package attention_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
)

// Of a request whose entries lie from row 5 on and whose position 0 would be row 30: a token that
// picked, one that attends its own list, padding, and a token of another piece, whose row stays as
// it was. The kernel is held by the attention over gathered rows.
func TestPlacedIndicesRef(t *testing.T) {
	c := attention.RowConfig{Window: 3, Ratio: 4, Width: 2}
	places := [][4]int32{{1, 5, 30, 1}, {1, 9, 30, 2}, {1, 0, 0, 0}, {0, 5, 30, 1}, {1, 5, 30, 1}}
	topk, positions := []int32{7, -1, 3, 4, 0, 0, 0, 0, 6, 2}, []int32{11, 11, 0, 12, 1}
	const width = 6
	indices, lens := make([]int32, len(places)*width), make([]int32, len(places))
	for i := range indices {
		indices[i] = 99
	}
	attention.PlacedIndicesRef(1, c, topk, positions, places, width, indices, lens)
	assert.Equal(t, []int32{5, 5, 0, -1, 2}, lens)
	assert.Equal(t, []int32{
		12, -1, 39, 40, 41, 99,
		9, 10, 39, 40, 41, 99,
		99, 99, 99, 99, 99, 99,
		99, 99, 99, 99, 99, 99,
		30, 31, 99, 99, 99, 99}, indices)
	attention.PlacedIndicesRef(1, c, nil, positions, places, width, indices, lens)
	assert.Equal(t, []int32{5, 6}, indices[:2], "all entries")
}
