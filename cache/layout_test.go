package cache

import (
	"errors"
	"testing"

	"github.com/vkmla/vkmla/vk"
)

func TestLayout(t *testing.T) {
	// Strides that vLLM allocates, and the used part of a page.
	for page, stride := range map[int]int{64: 37440, 2: 1728, 1: 1152, 16: 9792} {
		l, err := NewLayout(page, 0)
		if err != nil || l.Stride != stride || DefaultStride(page) != stride {
			t.Errorf("page %d: stride %d, %v, want %d", page, l.Stride, err, stride)
		}
	}
	for _, bad := range [][2]int{{0, 0}, {-1, 584}, {64, 37375}, {64, 37376 - 8}, {64, 37380}, {maxPage + 1, 0}, {1, 1 << 31}} {
		if l, err := NewLayout(bad[0], bad[1]); !errors.Is(err, vk.ErrArgument) {
			t.Errorf("NewLayout(%d, %d) = %v, %v", bad[0], bad[1], l, err)
		}
	}
	l, err := NewLayout(64, 37376)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.RowOffset(64*3 + 5); got != 3*37376+5*576 {
		t.Errorf("RowOffset %d", got)
	}
	if got := l.ScaleOffset(64*3 + 5); got != 3*37376+64*576+5*8 {
		t.Errorf("ScaleOffset %d", got)
	}
	// Beyond 32 bits.
	if got := l.RowOffset(64 * 200000); got != 200000*37376 {
		t.Errorf("RowOffset of page 200000: %d", got)
	}
}

// Every byte of the used part of a page belongs to exactly one slot.
func TestLayoutCoversPage(t *testing.T) {
	for _, page := range []int{1, 2, 3, 16, 64} {
		l := Layout{page, DefaultStride(page)}
		owners := make([]int, l.Stride)
		for s := range int64(page) {
			for i := range int64(RowBytes) {
				owners[l.RowOffset(s)+i]++
			}
			for i := range int64(ScaleBytes) {
				owners[l.ScaleOffset(s)+i]++
			}
		}
		for i, n := range owners {
			if want := min(max(page*SlotBytes-i, 0), 1); n != want {
				t.Fatalf("page of %d: byte %d has %d owners, want %d", page, i, n, want)
			}
		}
	}
}
