package cache

import (
	"context"
	"fmt"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// newPages allocates the pages of a cache.
func newPages(dev *vk.Device, op, label, otherwise string, pages, page, stride int) (tensor.Tensor, error) {
	if err := checkPages(op, pages, page); err != nil {
		return tensor.Tensor{}, err
	}
	if label == "" {
		label = otherwise
	}
	pool, err := tensor.New(dev, label, tensor.U8, pages, stride)
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

// fillPool writes a byte over a pool and waits.
func fillPool(ctx context.Context, op string, pool tensor.Tensor, b byte) error {
	rec, err := pool.Buffer.Device().NewRecorder()
	if err != nil {
		return pkg.Wrap(op, err)
	}
	defer rec.Close()
	if err := rec.Fill(pool.View(), uint32(b)*0x01010101); err != nil {
		return pkg.Wrap(op, err)
	}
	cmd, err := rec.End()
	if err != nil {
		return pkg.Wrap(op, err)
	}
	defer cmd.Close()
	if err := cmd.Run(ctx); err != nil {
		return pkg.Wrap(op, err)
	}
	return nil
}

// copyPages records copies of whole pages, in order, after checking all of them.
func copyPages(rec *vk.Recorder, op string, pool tensor.Tensor, copies []PageCopy) error {
	pages := poolPages(pool)
	for _, p := range copies {
		if min(p.From, p.To) < 0 || int(max(p.From, p.To)) >= pages || p.From == p.To {
			return pkg.Wrong(op, "copies", fmt.Sprintf("%d to %d", p.From, p.To), "two pages of 0..%d", pages-1)
		}
	}
	for _, p := range copies {
		from, to := int(p.From), int(p.To)
		if err := rec.Copy(pool.Rows(to, to+1).View(), pool.Rows(from, from+1).View()); err != nil {
			return pkg.Wrap(op, err)
		}
	}
	return nil
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
