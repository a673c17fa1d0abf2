package attention_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/testkit"
)

func TestWindowIndices(t *testing.T) { testkit.TestOp(t, "decode_window_indices") }

func TestDraftIndices(t *testing.T) { testkit.TestOp(t, "draft_block_indices") }

// A draft block of 5 after position 199: each of its tokens attends positions 72 to 199, and all of
// the block. After position 2 there are 3 rows of context.
func TestDraftIndicesRef(t *testing.T) {
	const width = 133
	slots, lens := make([]int32, 8*width), make([]int32, 8)
	attention.DraftIndicesRef(8, 128, 5, []int32{0, 5, 8}, []int32{205, 6}, []int32{0, 0, 0, 0, 0, 1, 1, 1},
		[]byte{1, 1, 1, 1, 1, 1, 1, 1}, attention.Table{Blocks: []int32{0, 1, 2, 3, 9, 8, 7, 6}, R: 2, W: 4, Page: 64}, slots, lens)
	var want []int32
	for p := int32(72); p < 205; p++ {
		want = append(want, p)
	}
	for i := range 5 {
		assert.Equal(t, want, slots[i*width:(i+1)*width], "token %d", i)
	}
	few := append([]int32{576, 577, 578, 579, 580, 581}, slices.Repeat([]int32{-1}, width-6)...)
	for i := 5; i < 8; i++ {
		assert.Equal(t, few, slots[i*width:(i+1)*width], "token %d", i)
	}
	assert.Equal(t, []int32{133, 133, 133, 133, 133, 6, 6, 6}, lens)
}

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
