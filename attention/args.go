package attention

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// newSplitter checks the sizes that decode and prefill have in common.
func newSplitter(dev *vk.Device, op string, heads, splits, workgroups int) (splitter, error) {
	switch {
	case heads < 1 || heads > MaxHeads:
		return splitter{}, pkg.Wrong(op, "Heads", heads, "1 to %d", MaxHeads)
	case splits < 0 || splits > MaxSplits:
		return splitter{}, pkg.Wrong(op, "Splits", splits, "0 to %d", MaxSplits)
	case workgroups < 0:
		return splitter{}, pkg.Wrong(op, "Workgroups", workgroups, "0 or more")
	}
	tune := tuning.Of(dev)
	if workgroups == 0 {
		workgroups = tune.Device.WorkgroupsOf(dev.Adapter(), 1)
	}
	return splitter{tune: &tune.Attention, heads: heads, fixed: splits, workgroups: workgroups}, nil
}

// grid is the workgroups of an attention kernel. Heads run fastest, so that workgroups that read
// the same rows run together.
func (s splitter) grid(p plan, t int) [3]uint32 {
	return [3]uint32{uint32(opkit.CeilDiv(s.heads, s.tilings[p.build].heads)), uint32(p.splits), uint32(t)}
}

// kernels are those of the tilings.
func (s splitter) kernels(dev *vk.Device, spec func(t tiling) opkit.Spec) (list []*opkit.Later) {
	for _, t := range s.tilings {
		list = append(list, pkg.Later(dev, spec(t)))
	}
	return list
}

// checkTokens checks the number of tokens against the grids of the attention
// kernel and of the merge after it.
func (s splitter) checkTokens(dev *vk.Device, op string, t int) error {
	return opkit.FirstError(pkg.Grid(dev, op, "Q", t, 1, 1), pkg.Grid(dev, op, "Q", t, 1, 2))
}

// scaleOf checks a softmax scale and fills in the default.
func scaleOf(op string, scale float32) (float32, error) {
	if scale == 0 {
		return DefaultScale, nil
	}
	if f := float64(scale); math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
		return 0, pkg.Wrong(op, "Scale", scale, "a positive number")
	}
	return scale, nil
}

// checkPages checks page sizes and records of a decoder's configuration.
func checkPages(op string, cfg DecoderConfig) error {
	if (cfg.WindowRecord == cache.RecordV4) != (cfg.CompressedRecord == cache.RecordV4) {
		return pkg.Wrong(op, "WindowRecord, CompressedRecord", fmt.Sprintf("%s and %s", cfg.WindowRecord, cfg.CompressedRecord),
			"both %s, or neither", cache.RecordV4)
	}
	for _, r := range []cache.Record{cfg.WindowRecord, cfg.CompressedRecord} {
		if _, err := cache.NewRecordLayout(r, 1, 0); err != nil {
			return pkg.Wrong(op, "WindowRecord, CompressedRecord", r, "a record of package cache")
		}
	}
	if err := pkg.Range(op, "WindowPage", cfg.WindowPage, 1, math.MaxInt32); err != nil || cfg.CompressedPage == 0 {
		return err
	}
	return pkg.Range(op, "CompressedPage", cfg.CompressedPage, 1, math.MaxInt32)
}

// checkDecode checks everything about a decode step that does not depend on the
// variant.
func checkDecode(dev *vk.Device, op string, cfg DecoderConfig, a DecodeArgs) error {
	t, h := opkit.DimOrZero(a.Q, 0), cfg.Heads
	if err := opkit.FirstError(
		pkg.Check(op, "Q", a.Q, tensor.BF16, -1, h, cache.D),
		checkSet(op, "Window", a.Window, t, cfg.WindowPage, cfg.WindowRecord),
		pkg.Optional(op, "Sink", a.Sink, tensor.F32, h),
		pkg.Check(op, "Out", a.Out, tensor.BF16, t, h, cache.D),
		pkg.Optional(op, "LSE", a.LSE, tensor.F32, t, h),
	); err != nil || a.Compressed.isZero() {
		return err
	}
	if cfg.CompressedPage == 0 {
		return pkg.Wrong(op, "Compressed", a.Compressed.Cache.Pool, "absent, because CompressedPage is 0")
	}
	return checkSet(op, "Compressed", a.Compressed, t, cfg.CompressedPage, cfg.CompressedRecord)
}

// checkSet checks one set of cached rows.
func checkSet(op, arg string, s SlotSet, t, page int, record cache.Record) error {
	return opkit.FirstError(
		s.Cache.CheckFor(pkg, op, arg+".Cache", page, record),
		pkg.Check(op, arg+".Indices", s.Indices, tensor.I32, t, -1),
		pkg.Check(op, arg+".Lens", s.Lens, tensor.I32, t))
}
