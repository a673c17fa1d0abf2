package cache

import (
	"cmp"
	"fmt"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// newPages allocates the pages of a cache.
func newPages(dev *vk.Device, op, label, otherwise string, pages, page, stride int) (tensor.Tensor, error) {
	if err := checkPages(op, pages, page); err != nil {
		return tensor.Tensor{}, err
	}
	pool, err := tensor.New(dev, cmp.Or(label, otherwise), tensor.U8, pages, stride)
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("%s: %s: %d pages of %d bytes: %w", pkg, op, pages, stride, err)
	}
	return pool, nil
}

// poolPages is the number of pages of a pool [pages, stride].
func poolPages(pool tensor.Tensor) int {
	if len(pool.Shape) == 0 {
		return 0
	}
	return pool.Shape[0]
}

// checkPool proves that a pool of state or indexer pages is memory of the shape
// that its layout says.
func checkPool(op, name string, pool tensor.Tensor, page, stride int) error {
	if err := pkg.CheckRows(op, name, pool, tensor.U8, -1, stride); err != nil {
		return err
	}
	if pool.Offset%poolAlign != 0 {
		return pkg.Wrong(op, name, fmt.Sprintf("offset %d", pool.Offset), "a multiple of %d bytes", poolAlign)
	}
	return checkPages(op, poolPages(pool), page)
}
