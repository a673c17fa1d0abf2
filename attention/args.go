package attention

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// checkLarge is check for a tensor that kernels address by row, so that the
// number of rows is what has to fit.
func checkLarge(op, arg string, t tensor.Tensor, dt tensor.DType, dims ...int) error {
	if err := tensor.Check("attention: "+op, arg, t, dt, dims...); err != nil {
		return err
	}
	if t.Shape[0] > math.MaxInt32 {
		return wrong(op, arg, t, "fewer than 2^31 rows")
	}
	return nil
}

// optional is check for a tensor that may be absent.
func optional(op, arg string, t tensor.Tensor, dt tensor.DType, dims ...int) error {
	if t.IsZero() {
		return nil
	}
	return check(op, arg, t, dt, dims...)
}

// reachable checks that a build can reach memory: base through a descriptor, the
// others at an address aligned to their widest access.
func reachable(dev *vk.Device, op, arg string, t tensor.Tensor, variant string, alignment uint64) error {
	limit := dev.Caps().MaxStorageBufferRange
	switch {
	case t.IsZero():
	case variant == VariantBase && t.Bytes() > limit:
		return wrong(op, arg, fmt.Sprintf("%d bytes", t.Bytes()), "at most %d for variant base; give MaxBytes when the operation is made", limit)
	case variant != VariantBase && t.View().Address()%alignment != 0:
		return wrong(op, arg, fmt.Sprintf("offset %d", t.Offset), "a multiple of %d", alignment)
	}
	return nil
}

// bindable checks that a descriptor holds a tensor, for operations whose first
// launch must not be recorded if a later one will be refused.
func bindable(dev *vk.Device, op, arg string, t tensor.Tensor) error {
	if limit := dev.Caps().MaxStorageBufferRange; t.Bytes() > limit {
		return wrong(op, arg, fmt.Sprintf("%v, %d bytes", t, t.Bytes()), "at most %d bytes, which a descriptor of %s holds", limit, dev.Adapter().Name)
	}
	return nil
}

// newSplitter checks the sizes that decode and prefill have in common.
func newSplitter(dev *vk.Device, op string, heads, splits, workgroups int) (splitter, error) {
	switch {
	case heads < 1 || heads > MaxHeads:
		return splitter{}, wrong(op, "Heads", heads, "1 to %d", MaxHeads)
	case splits < 0 || splits > MaxSplits:
		return splitter{}, wrong(op, "Splits", splits, "0 to %d", MaxSplits)
	case workgroups < 0:
		return splitter{}, wrong(op, "Workgroups", workgroups, "0 or more")
	}
	if workgroups == 0 {
		workgroups = DefaultWorkgroups(dev.Adapter().Type)
	}
	return splitter{heads: heads, fixed: splits, workgroups: workgroups}, nil
}

// groups is the grid of an attention kernel. Head groups run fastest, so that
// those that read the same rows run together.
func (s splitter) groups(splits, t int) [3]uint32 {
	return [3]uint32{uint32(ceilDiv(s.heads, s.tiling.HeadsPerGroup)), uint32(splits), uint32(t)}
}

// checkTokens checks the number of tokens against the grids of the attention
// kernel and of the merge after it.
func (s splitter) checkTokens(dev *vk.Device, op string, t int) error {
	c := dev.Caps().MaxWorkgroupCount
	if limit := int(min(c[1], c[2])); t > limit {
		return wrong(op, "Q", fmt.Sprintf("%d tokens", t), "at most %d", limit)
	}
	return nil
}

// scaleOf checks a softmax scale and fills in the default.
func scaleOf(op string, scale float32) (float32, error) {
	if scale == 0 {
		return DefaultScale, nil
	}
	if f := float64(scale); math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
		return 0, wrong(op, "Scale", scale, "a positive number")
	}
	return scale, nil
}

// checkPages checks the page sizes of a decoder's configuration.
func checkPages(op string, cfg DecoderConfig) error {
	if err := positive(op, "WindowPage", cfg.WindowPage); err != nil || cfg.CompressedPage == 0 {
		return err
	}
	return positive(op, "CompressedPage", cfg.CompressedPage)
}

// checkDecode checks everything about a decode step that does not depend on the
// variant.
func checkDecode(dev *vk.Device, op string, cfg DecoderConfig, a DecodeArgs) error {
	t, h := dim(a.Q, 0), cfg.Heads
	if err := first(
		check(op, "Q", a.Q, tensor.BF16, -1, h, D),
		checkSet(op, "Window", a.Window, t, cfg.WindowPage),
		optional(op, "Sink", a.Sink, tensor.F32, h),
		check(op, "Out", a.Out, tensor.BF16, t, h, D),
		optional(op, "LSE", a.LSE, tensor.F32, t, h),
	); err != nil || a.Compressed.IsZero() {
		return err
	}
	if cfg.CompressedPage == 0 {
		return wrong(op, "Compressed", a.Compressed.Cache.Pool, "absent, because CompressedPage is 0")
	}
	return checkSet(op, "Compressed", a.Compressed, t, cfg.CompressedPage)
}

// checkSet checks one set of cached rows.
func checkSet(op, arg string, s SlotSet, t, page int) error {
	c := s.Cache
	if l, err := cache.NewLayout(c.Layout.Page, c.Layout.Stride); err != nil || l != c.Layout {
		if err == nil {
			return wrong(op, arg+".Cache.Layout", c.Layout, "a layout with a stride")
		}
		return fmt.Errorf("attention: %s: %s: %w", op, arg, err)
	}
	if err := first(
		tensor.Check("attention: "+op, arg+".Cache.Pool", c.Pool, tensor.U8, -1, c.Layout.Stride),
		check(op, arg+".Indices", s.Indices, tensor.I32, t, -1),
		check(op, arg+".Lens", s.Lens, tensor.I32, t),
	); err != nil {
		return err
	}
	switch {
	case c.Layout.Page != page:
		return wrong(op, arg+".Cache.Layout.Page", c.Layout.Page, "%d, which the kernel was built for", page)
	case c.Pages() < 1 || c.Slots() > math.MaxInt32:
		return wrong(op, arg+".Cache.Pool", c.Pool, "at least one page and fewer than 2^31 slots")
	}
	return nil
}
