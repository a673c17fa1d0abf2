package attention_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestC128Indices(t *testing.T) { testkit.TestOp(t, "c128a_indices") }

func TestC128IndicesRef(t *testing.T) {
	table := attention.Table{Blocks: []int32{7, 4}, R: 1, W: 2, Page: 2}
	indices, lens := attention.C128IndicesRef([]int32{126, 127, 400, 400}, 128, 4, []int64{0, 5, 9, -1}, []int32{0, 0, 0, 0}, &table)
	want := []int32{-1, -1, -1, -1, 14, -1, -1, -1, 14, 15, 8, -1, 14, 15, 8, -1}
	assert.Equal(t, want, indices)
	assert.Equal(t, []int32{0, 1, 3, 0}, lens)
	local, _ := attention.C128IndicesRef([]int32{300}, 128, 4, nil, nil, nil)
	assert.Equal(t, []int32{0, 1, -1, -1}, local, "local")
	for maxLen, width := range map[int]int{1: 128, 128 * 128: 128, 128*128 + 1: 256, 1 << 20: 8192} {
		got := attention.C128Width(maxLen, 128)
		assert.Equal(t, width, got, "C128Width(%d) = %d", maxLen, got)
	}
}
