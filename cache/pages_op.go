package cache

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// PagesConfig says for which caches an operation on rows in pages is built.
type PagesConfig struct {
	Page     int    // slots per page of the caches
	Record   Record // how these store a slot; 0: RecordV4
	MaxBytes uint64 // size of the largest cache or output; 0: whatever a descriptor of the device can hold
	Variant  string // a build, as vkmla info lists them; "" picks the best
}

// pagesOp is an operation on rows in pages, of one kernel, which the device owns.
type pagesOp struct {
	dev *vk.Device
	cfg PagesConfig
	built
	kernel *vk.Kernel
}

// newPagesOp chooses a build of a kernel, whose constants are the size of pages, `more` and the
// record.
//
// Errors: *vk.ArgumentError for a page size, a record or a variant that does not exist or cannot
// hold MaxBytes; *vk.MissingError; those of vk.Device.Kernel.
func newPagesOp(dev *vk.Device, op string, cfg PagesConfig, s opkit.Spec, more ...int) (pagesOp, error) {
	if err := least(cfg.Record, cfg.Page).check(op); err != nil {
		return pagesOp{}, err
	}
	s.Constants = opkit.AppendNonzero(opkit.Constants(cfg.Page), append(more, int(cfg.Record))...)
	variant, k, err := pkg.Build(dev, op, cfg.Variant, cfg.MaxBytes, s)
	return pagesOp{dev, cfg, variant, k}, err
}

// check proves that a cache is what the operation was built for and that its variant can reach it.
func (x *pagesOp) check(op string, c KVCache) error {
	return checkCache(x.dev, op, x.Variant(), c, x.cfg.Page, x.cfg.Record)
}
