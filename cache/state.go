package cache

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
)

// poolAlign divides strides and offsets of state and indexer pages, so that kernels may read them
// 16 bytes at a time.
const poolAlign = 16

// StateLayout is the shape of a page of compressor state: slot t holds Channels f32
// kv values and then Channels f32 scores, to which the positional term was added,
// from byte t*8*Channels of the page. NewStateLayout makes a checked one; a literal
// is checked where it is used.
//
// Source: the state cache of vLLM models/deepseek_v4/compressor.py.
type StateLayout struct {
	Page     int // tokens per page
	Stride   int // bytes from a page to the next, at least Page*8*Channels, a multiple of 16
	Channels int // see Compression.Channels
}

// NewStateLayout returns the layout of pages of page tokens that begin stride bytes
// apart; a stride of 0 means the bytes in use rounded up to a multiple of 576. The
// error is a *vk.ArgumentError.
func NewStateLayout(c Compression, page, stride int) (StateLayout, error) {
	const op = "state layout"
	if err := c.check(op); err != nil {
		return StateLayout{}, err
	}
	l := StateLayout{Page: page, Stride: stride, Channels: c.Channels()}
	if stride == 0 && page > 0 && page <= math.MaxInt32/2/l.SlotBytes() {
		l.Stride = opkit.RoundUp(page*l.SlotBytes(), strideAlign)
	}
	return l, l.check(op)
}

// SlotBytes is the size of a token's state, 8*Channels.
func (l StateLayout) SlotBytes() int { return 8 * l.Channels }

// slotOffset is the byte of a pool at which a slot begins.
func (l StateLayout) slotOffset(slot int64) int64 {
	return slot/int64(l.Page)*int64(l.Stride) + slot%int64(l.Page)*int64(l.SlotBytes())
}

func (l StateLayout) check(op string) error {
	switch l.Channels {
	case IndexDim, 2 * IndexDim, D, 2 * D:
	default:
		return pkg.Wrong(op, "Channels", l.Channels, "%d, %d, %d or %d", IndexDim, 2*IndexDim, D, 2*D)
	}
	return checkPage(op, l.Page, l.Stride, l.SlotBytes())
}

// checkPage checks page and stride of a pool whose slots take slotBytes.
func checkPage(op string, page, stride, slotBytes int) error {
	switch limit := math.MaxInt32 / slotBytes; {
	case page < 1 || page > limit:
		return pkg.Wrong(op, "Page", page, "1..%d slots", limit)
	case stride < page*slotBytes || stride%poolAlign != 0 || stride > math.MaxInt32:
		return pkg.Wrong(op, "Stride", fmt.Sprintf("%d bytes", stride),
			"a multiple of %d, at least %d for %d slots of %d bytes, below 2^31", poolAlign, page*slotBytes, page, slotBytes)
	}
	return nil
}

// maxStateBytes is the largest size of a state pool: kernels number its 16-byte units in 32 bits,
// and the last number stands for none.
const maxStateBytes = poolAlign * (1<<32 - 2)

// StateCache is a pool of pages of compressor state in device memory. A literal makes one of a
// tensor.
type StateCache struct {
	Pool   tensor.Tensor // [pages, stride] u8
	Layout StateLayout
}

// pages is the number of pages.
func (c StateCache) pages() int { return poolPages(c.Pool) }

func (c StateCache) check(op string) error {
	if err := c.Layout.check(op); err != nil {
		return err
	}
	if err := checkPool(op, "State.Pool", c.Pool, c.Layout.Page, c.Layout.Stride); err != nil {
		return err
	}
	if n := c.Pool.Bytes(); n > maxStateBytes {
		return pkg.Wrong(op, "State.Pool", fmt.Sprintf("%d bytes", n), "at most %d bytes", uint64(maxStateBytes))
	}
	return nil
}
