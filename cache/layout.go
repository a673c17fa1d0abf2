package cache

import (
	"fmt"
	"math"
)

// What a slot of RecordV4 is made of.
const (
	D          = 512 // numbers in a slot
	NopeDim    = 448 // of these the first are E4M3 codes,
	RopeDim    = 64  // the last are bf16
	blockDim   = 64  // E4M3 codes that share a scale
	blocks     = 7   // scales of a slot
	rowBytes   = 576 // data bytes of a slot: 448 + 2*64
	scaleBytes = 8   // scale bytes of a slot: 7 and a pad byte, which is 0
	slotBytes  = rowBytes + scaleBytes

	// strideAlign divides the usual page stride.
	strideAlign = 576
)

// maxPage keeps every offset within a page in 31 bits.
const maxPage = math.MaxInt32 / slotBytes

// Layout is the shape of a page: the data of its slots lie first, Record.RowBytes a
// slot, then their scales, Record.ScaleBytes a slot, then padding that is never read up
// to Stride. NewLayout and NewRecordLayout make a checked one; a literal is checked
// where it is used.
type Layout struct {
	Page   int    // slots per page
	Stride int    // bytes from a page to the next, at least Page*Record.SlotBytes(), a multiple of Record.Align()
	Record Record // how a slot is stored; the zero value is DeepSeek-V4's
}

// NewLayout returns the layout of pages of page slots of RecordV4 that begin stride
// bytes apart; a stride of 0 means RecordV4.DefaultStride(page). The error is a
// *vk.ArgumentError.
func NewLayout(page, stride int) (Layout, error) { return NewRecordLayout(RecordV4, page, stride) }

// NewRecordLayout is NewLayout for slots of any record; a stride of 0 means
// record.DefaultStride(page).
func NewRecordLayout(record Record, page, stride int) (Layout, error) {
	const op = "layout"
	l := Layout{Page: page, Stride: stride, Record: record}
	if err := record.check(op); err != nil {
		return l, err
	}
	if stride == 0 && page > 0 && page <= maxPage {
		l.Stride = record.DefaultStride(page)
	}
	return l, l.check(op)
}

// least is the layout of the fewest bytes with which a kernel for pages of page slots is checked.
func least(record Record, page int) Layout {
	l, _ := NewRecordLayout(record, page, 0)
	return l
}

func (l Layout) check(op string) error {
	if err := l.Record.check(op); err != nil {
		return err
	}
	switch slot := l.Record.SlotBytes(); {
	case l.Page < 1 || l.Page > maxPage:
		return pkg.Wrong(op, "Page", l.Page, "1..%d slots", maxPage)
	case l.Stride < l.Page*slot || uint64(l.Stride)%l.Record.Align() != 0 || l.Stride > math.MaxInt32:
		return pkg.Wrong(op, "Stride", fmt.Sprintf("%d bytes", l.Stride),
			"a multiple of %d, at least %d for %d slots of %d bytes, below 2^31", l.Record.Align(), l.Page*slot, l.Page, slot)
	}
	return nil
}

// RowOffset is the byte of a pool at which the data bytes of a slot begin.
func (l Layout) RowOffset(slot int64) int64 {
	page, t := slot/int64(l.Page), slot%int64(l.Page)
	return page*int64(l.Stride) + t*int64(l.Record.RowBytes())
}

// ScaleOffset is the byte of a pool at which the scale bytes of a slot begin.
func (l Layout) ScaleOffset(slot int64) int64 {
	page, t := slot/int64(l.Page), slot%int64(l.Page)
	return page*int64(l.Stride) + int64(l.Page)*int64(l.Record.RowBytes()) + t*int64(l.Record.ScaleBytes())
}
