package cache

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
)

// What a slot is made of.
const (
	D          = 512 // numbers in a slot
	NopeDim    = 448 // of these the first are E4M3 codes,
	RopeDim    = 64  // the last are bf16
	BlockDim   = 64  // E4M3 codes that share a scale
	Blocks     = 7   // scales of a slot
	RowBytes   = 576 // data bytes of a slot: 448 + 2*64
	ScaleBytes = 8   // scale bytes of a slot: 7 and a pad byte, which is 0
	SlotBytes  = RowBytes + ScaleBytes

	// StrideAlign is what the usual page stride is a multiple of.
	StrideAlign = 576
)

// maxPage keeps every offset within a page in 31 bits.
const maxPage = math.MaxInt32 / SlotBytes

// Layout is the shape of a page: its data rows lie first, 576 bytes a slot, then
// its scales, 8 bytes a slot, then padding that is never read up to Stride.
// NewLayout makes a checked one; a literal is checked where it is used.
//
// Source: the fp8_ds_mla layout of vLLM's DeepSeek-V4 K cache.
type Layout struct {
	Page   int // slots per page
	Stride int // bytes from a page to the next, at least Page*584, a multiple of 8
}

// DefaultStride is round_up(page*584, 576) bytes, the stride that an allocator of
// pages of a single kind chooses.
func DefaultStride(page int) int {
	return opkit.RoundUp(page*SlotBytes, StrideAlign)
}

// NewLayout returns the layout of pages of page slots that begin stride bytes
// apart; a stride of 0 means DefaultStride(page). The error is a
// *vk.ArgumentError.
func NewLayout(page, stride int) (Layout, error) {
	l := Layout{Page: page, Stride: stride}
	if stride == 0 && page > 0 && page <= maxPage {
		l.Stride = DefaultStride(page)
	}
	return l, l.check("layout")
}

func (l Layout) check(op string) error {
	switch {
	case l.Page < 1 || l.Page > maxPage:
		return pkg.Wrong(op, "Page", l.Page, "1..%d slots", maxPage)
	case l.Stride < l.Page*SlotBytes || l.Stride%8 != 0 || l.Stride > math.MaxInt32:
		return pkg.Wrong(op, "Stride", fmt.Sprintf("%d bytes", l.Stride),
			"a multiple of 8, at least %d for %d slots of %d bytes, below 2^31", l.Page*SlotBytes, l.Page, SlotBytes)
	}
	return nil
}

// RowOffset is the byte of a pool at which the 576 data bytes of a slot begin.
func (l Layout) RowOffset(slot int64) int64 {
	page, t := slot/int64(l.Page), slot%int64(l.Page)
	return page*int64(l.Stride) + t*RowBytes
}

// ScaleOffset is the byte of a pool at which the 8 scale bytes of a slot begin.
func (l Layout) ScaleOffset(slot int64) int64 {
	page, t := slot/int64(l.Page), slot%int64(l.Page)
	return page*int64(l.Stride) + int64(l.Page)*RowBytes + t*ScaleBytes
}

// PoolBytes is the size of a pool of that many pages in bytes.
func (l Layout) PoolBytes(pages int) uint64 { return uint64(pages) * uint64(l.Stride) }
