package attention_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
)

// Two tokens: the compressed rows of both lie before the window rows of both. The
// kernel is held by the two-pass decode.
func TestPackIndicesRef(t *testing.T) {
	pool := make([]byte, 2*1176)
	l := cache.Layout{Page: 2, Stride: 1176}
	comp := &attention.Slots{Pool: pool, Layout: l, Width: 2, Indices: []int32{3, -1, 0, 1}, Lens: []int32{2, 1}}
	win := &attention.Slots{Pool: pool, Layout: l, Width: 3, Indices: []int32{0, 4, 2, 3, 3, 3}, Lens: []int32{3, 9}}
	for keep, want := range map[bool][]int32{
		false: {0, -1, 4, -1, 6, -1, 2, 7, 8, 9, -1, -1},
		true:  {0, 1, 4, 5, 6, -1, 2, 7, 8, 9, -1, -1},
	} {
		got, lens := attention.PackIndicesRef(2, win, comp, 6, keep)
		assert.True(t, slices.Equal(got, want) && slices.Equal(lens, []int32{5, 4}),
			"keepMasked %v: got %v, lengths %v, want %v", keep, got, lens, want)
	}
}
