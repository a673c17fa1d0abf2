package cache

import (
	"errors"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// IndexDim is the numbers of an indexer key.
const IndexDim = 128

// IndexKeyFormat names a storage format of indexer keys of 128 numbers.
type IndexKeyFormat uint8

// Formats of indexer keys.
const (
	IndexKeyFP8   IndexKeyFormat = iota + 1 // 128 E4M3 codes and an f32 scale: 132 bytes
	IndexKeyMXFP4                           // 128 E2M1 codes, two a byte, and 4 UE8M0 scales of 32: 68 bytes
)

// String is "fp8" or "mxfp4".
func (f IndexKeyFormat) String() string {
	switch f {
	case IndexKeyFP8:
		return "fp8"
	case IndexKeyMXFP4:
		return "mxfp4"
	}
	return fmt.Sprintf("format(%d)", uint8(f))
}

// RowBytes is the bytes of a key's codes: 128 or 64.
func (f IndexKeyFormat) RowBytes() int {
	if f == IndexKeyMXFP4 {
		return IndexDim / 2
	}
	return IndexDim
}

// IndexScaleBytes is the bytes of a key's scales in either format.
const IndexScaleBytes = 4

// IndexKeyLayout is the shape of a page of indexer keys: first the codes of its
// slots, RowBytes each, then their scales, 4 bytes each (a little-endian f32 that is
// a power of two, or the UE8M0 bytes of the four blocks), then padding that is never
// read up to Stride. NewIndexKeyLayout makes a checked one; a literal is checked
// where it is used.
//
// Source: the indexer cache of vLLM v1/attention/backends/mla/indexer.py.
type IndexKeyLayout struct {
	Page   int // slots per page
	Stride int // bytes from a page to the next, at least Page*(rowBytes+4), a multiple of 16
	Format IndexKeyFormat
}

// defaultIndexStride is round_up(page*132, 576), which both formats use: MXFP4 pages
// leave the rest unused.
func defaultIndexStride(page int) int {
	return opkit.RoundUp(page*(IndexDim+IndexScaleBytes), strideAlign)
}

// NewIndexKeyLayout returns the layout of pages of page slots that begin stride
// bytes apart; a stride of 0 means round_up(page*132, 576). The error is a
// *vk.ArgumentError.
func NewIndexKeyLayout(format IndexKeyFormat, page, stride int) (IndexKeyLayout, error) {
	l := IndexKeyLayout{Page: page, Stride: stride, Format: format}
	if stride == 0 && page > 0 && page <= math.MaxInt32/2/(IndexDim+IndexScaleBytes) {
		l.Stride = defaultIndexStride(page)
	}
	return l, l.check("index key layout")
}

// RowOffset is the byte of a pool at which the codes of a slot begin.
func (l IndexKeyLayout) RowOffset(slot int64) int64 {
	return slot/int64(l.Page)*int64(l.Stride) + slot%int64(l.Page)*int64(l.Format.RowBytes())
}

// ScaleOffset is the byte of a pool at which the 4 scale bytes of a slot begin.
func (l IndexKeyLayout) ScaleOffset(slot int64) int64 {
	page, t := slot/int64(l.Page), slot%int64(l.Page)
	return page*int64(l.Stride) + int64(l.Page)*int64(l.Format.RowBytes()) + t*IndexScaleBytes
}

func (l IndexKeyLayout) check(op string) error {
	if err := l.Format.check(op); err != nil {
		return err
	}
	return checkPage(op, l.Page, l.Stride, l.Format.RowBytes()+IndexScaleBytes)
}

func (f IndexKeyFormat) check(op string) error {
	if f != IndexKeyFP8 && f != IndexKeyMXFP4 {
		return pkg.Wrong(op, "Format", f, "IndexKeyFP8 or IndexKeyMXFP4")
	}
	return nil
}

// IndexKeyCache is a pool of pages of indexer keys in device memory. A literal makes one of a
// tensor.
type IndexKeyCache struct {
	Pool   tensor.Tensor // [pages, stride] u8
	Layout IndexKeyLayout
}

// pages is the number of pages.
func (c IndexKeyCache) Pages() int { return poolPages(c.Pool) }

// Check proves that the layout is legal and the pool is memory of the shape that it
// says, with an offset that is a multiple of 16; op names who asks. The error is a
// *vk.ArgumentError.
func (c IndexKeyCache) Check(op string) error {
	err := c.check(op)
	var wrong *vk.ArgumentError
	if errors.As(err, &wrong) {
		wrong.Op = op // who asks may be another package
	}
	return err
}

func (c IndexKeyCache) check(op string) error {
	if err := c.Layout.check(op); err != nil {
		return err
	}
	return checkPool(op, "Keys.Pool", c.Pool, c.Layout.Page, c.Layout.Stride)
}
