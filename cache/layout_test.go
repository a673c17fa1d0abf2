package cache

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

func TestLayout(t *testing.T) {
	// Strides that vLLM allocates, and the used part of a page.
	for page, stride := range map[int]int{64: 37440, 2: 1728, 1: 1152, 16: 9792} {
		l, err := NewLayout(page, 0)
		assert.NoError(t, err, "page %d", page)
		assert.Equal(t, stride, l.Stride, "page %d", page)
		assert.Equal(t, stride, RecordV4.DefaultStride(page), "page %d", page)
	}
	for _, bad := range [][2]int{{0, 0}, {-1, 584}, {64, 37375}, {64, 37376 - 8}, {64, 37380}, {maxPage + 1, 0}, {1, 1 << 31}} {
		l, err := NewLayout(bad[0], bad[1])
		assert.ErrorIs(t, err, vk.ErrArgument, "NewLayout(%d, %d) = %v", bad[0], bad[1], l)
	}
	l, err := NewLayout(64, 37376)
	require.NoError(t, err)
	assert.Equal(t, int64(3*37376+5*576), l.RowOffset(64*3+5), "RowOffset")
	assert.Equal(t, int64(3*37376+64*576+5*8), l.ScaleOffset(64*3+5), "ScaleOffset")
	// Beyond 32 bits.
	assert.Equal(t, int64(200000*37376), l.RowOffset(64*200000), "RowOffset of page 200000")
}

// Every byte of the used part of a page belongs to exactly one slot.
func TestLayoutCoversPage(t *testing.T) {
	for _, page := range []int{1, 2, 3, 16, 64} {
		l := Layout{Page: page, Stride: RecordV4.DefaultStride(page)}
		owners := make([]int, l.Stride)
		for s := range int64(page) {
			for i := range int64(rowBytes) {
				owners[l.RowOffset(s)+i]++
			}
			for i := range int64(scaleBytes) {
				owners[l.ScaleOffset(s)+i]++
			}
		}
		for i, n := range owners {
			if want := min(max(page*slotBytes-i, 0), 1); n != want {
				t.Fatalf("page of %d: byte %d has %d owners, want %d", page, i, n, want)
			}
		}
	}
}
