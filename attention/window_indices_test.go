package attention_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestWindowIndices(t *testing.T) { testkit.TestOp(t, "decode_window_indices") }

// A window that begins in the middle of a page: position 130 of a request with the
// pages 3, 9, 4.
func TestWindowIndicesRef(t *testing.T) {
	slots, lens := make([]int32, 128), []int32{7, 7, 7}
	attention.WindowIndicesRef(1, 128, []int32{0, 1}, []int32{131}, []int32{0}, []byte{1},
		attention.Table{Blocks: []int32{3, 9, 4}, R: 1, W: 3, Page: 64}, slots, lens)
	var want []int32
	for _, r := range [][2]int32{{195, 255}, {576, 639}, {256, 258}} {
		for s := r[0]; s <= r[1]; s++ {
			want = append(want, s)
		}
	}
	assert.True(t, slices.Equal(slots, want) && slices.Equal(lens, []int32{128, 0, 0}), "got %v, lengths %v", slots, lens)
}
