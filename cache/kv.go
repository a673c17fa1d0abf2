package cache

import (
	"fmt"
	"math"

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

// check proves that the pool is memory of the shape that its layout says.
func (c KVCache) check(op string) error {
	if err := c.Layout.check(op); err != nil {
		return err
	}
	if err := pkg.CheckRows(op, "Cache.Pool", c.Pool, tensor.U8, -1, c.Layout.Stride); err != nil {
		return err
	}
	if align := c.Layout.Record.Align(); c.Pool.Offset%align != 0 {
		return pkg.Wrong(op, "Cache.Pool", fmt.Sprintf("offset %d", c.Pool.Offset), "a multiple of %d bytes", align)
	}
	return checkPages(op, c.Pages(), c.Layout.Page)
}

func checkPages(op string, pages, page int) error {
	if limit := math.MaxInt32 / page; pages < 1 || pages > limit {
		return pkg.Wrong(op, "Pages", pages, "1..%d, so that slot ids of %d-slot pages fit int32", limit, page)
	}
	return nil
}
