package cache

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// KVCache is a pool of K pages in device memory. NewKV allocates one; a literal makes one of memory
// that has another owner.
type KVCache struct {
	Pool   tensor.Tensor // [pages, stride] u8
	Layout Layout
}

// KVConfig describes a cache to allocate.
type KVConfig struct {
	Label  string // under which its memory is counted; "" means "kv cache"
	Pages  int    // at least 1; Pages*Page slots, fewer than 2^31
	Layout Layout // see NewLayout
}

// NewKV allocates a cache. What its pages contain is undefined; kernels read only
// slots that an index list or a block table names, so nothing has to be cleared. A
// pool may be larger than the device's storage-buffer range; then only kernel
// variants that reach it by device address can use it. The caller closes it.
//
// Errors: *vk.ArgumentError; those of tensor.New, among them
// vk.ErrOutOfDeviceMemory.
func NewKV(dev *vk.Device, cfg KVConfig) (KVCache, error) {
	const op = "new kv cache"
	if err := cfg.Layout.check(op); err != nil {
		return KVCache{}, err
	}
	pool, err := newPages(dev, op, cfg.Label, "kv cache", cfg.Pages, cfg.Layout.Page, cfg.Layout.Stride)
	if err != nil {
		return KVCache{}, err
	}
	return KVCache{Pool: pool, Layout: cfg.Layout}, nil
}

// pages is the number of pages, 0 for the zero KVCache.
func (c KVCache) Pages() int { return poolPages(c.Pool) }

// Slots is the number of slots, pages*page; slot ids are below it.
func (c KVCache) Slots() int64 { return int64(c.Pages()) * int64(c.Layout.Page) }

// Close frees the pool, for a cache that NewKV made.
func (c KVCache) Close() error { return c.Pool.Close() }

// CheckFor proves that the pool is memory of the shape that its layout says, and that this is what
// an operation was built for. It is for the packages of operations, whose errors it makes.
func (c KVCache) CheckFor(p opkit.Package, op, arg string, page int, record Record) error {
	l := c.Layout
	if err := l.check(op); err != nil {
		return fmt.Errorf("%s: %s: %s: %w", p, op, arg, err)
	}
	if err := p.CheckRows(op, arg+".Pool", c.Pool, tensor.U8, -1, l.Stride); err != nil {
		return err
	}
	switch align, limit := l.Record.Align(), math.MaxInt32/l.Page; {
	case c.Pool.Offset%align != 0:
		return p.Wrong(op, arg+".Pool", fmt.Sprintf("offset %d", c.Pool.Offset), "a multiple of %d bytes", align)
	case c.Pages() < 1 || c.Pages() > limit:
		return p.Wrong(op, arg+".Pool", c.Pool, "1 to %d pages, so that slot ids fit int32", limit)
	case l.Page != page:
		return p.Wrong(op, arg+".Layout.Page", l.Page, "%d, which the kernel was built for", page)
	case l.Record != record:
		return p.Wrong(op, arg+".Layout.Record", l.Record, "%s, which the kernel was built for", record)
	}
	return nil
}

func checkPages(op string, pages, page int) error {
	if limit := math.MaxInt32 / page; pages < 1 || pages > limit {
		return pkg.Wrong(op, "Pages", pages, "1..%d, so that slot ids of %d-slot pages fit int32", limit, page)
	}
	return nil
}
