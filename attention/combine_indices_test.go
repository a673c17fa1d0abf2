package attention_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestCombineIndices(t *testing.T) { testkit.TestOp(t, "combine_topk_swa_indices") }

// Two requests, window 3, one compressed entry for two tokens; the second time with gather lengths
// that are too short: then only the arithmetic is checked.
func TestCombineIndicesRef(t *testing.T) {
	topk := make([]int32, 5*4)
	for i := range topk {
		topk[i] = int32(i % 4)
	}
	for _, c := range []struct {
		gather []int32
		rows   [][]int32
	}{
		{[]int32{5, 4}, [][]int32{{0, 1, 8, 9, 10}, {0, 1, 9, 10, 11}, {0, 1, 2, 10, 11, 12}, {20, 28, 29, 30}, {20, 21, 29, 30, 31}}},
		{[]int32{4, 3}, [][]int32{{0, 1, 7, 8, 9}, {0, 1, 8, 9, 10}, {0, 1, 2, 9, 10, 11}, {20, 27, 28, 29}, {20, 21, 28, 29, 30}}},
	} {
		indices, lens := attention.CombineIndicesRef(5, topk, 4, []int32{10, 13, 15}, []int32{6, 4}, c.gather, 4, 3, 2, 20, 8)
		for i, row := range c.rows {
			got := indices[i*128 : (i+1)*128]
			if !slices.Equal(got[:len(row)], row) || got[len(row)] != -1 || int(lens[i]) != len(row) {
				t.Errorf("gather %v, token %d: got %v.., length %d, want %v", c.gather, i, got[:len(row)+1], lens[i], row)
			}
		}
	}
	for k, width := range map[int]int{0: 128, 512: 640, 1024: 1152, 8192: 8320} {
		got := attention.CombinedWidth(k, 128)
		assert.Equal(t, width, got, "CombinedWidth(%d) = %d", k, got)
	}
}
