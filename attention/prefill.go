package attention

import (
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnPrefillPush struct {
	KvAddr                            uint64
	Rows, Heads, Width, Splits, Flags uint32
	ScaleLog2e                        float32
	TableRows                         uint32
	Eps                               float32
}

// PrefillConfig configures a Prefill. Any number of heads works; powers of two from 16 on are fast,
// because a workgroup has a power of two of them and computes the rest as padding.
type PrefillConfig struct {
	Heads      int     // H, 1 to 128
	Scale      float32 // softmax scale; 0 means DefaultScale
	MaxBytes   uint64  // size of the largest workspace; 0: what a descriptor holds
	Variant    string  // a build, as vkmla info lists them; "" picks the best
	Splits     int     // parts of each row, 1 to MaxSplits; 0: by rule, see ScratchBytes
	Workgroups int     // that fill the device, for that rule; 0: its compute units, or an estimate
	Norm       bool    // PrefillArgs.Norm is given where NormsQueries permits

	// OnDemand leaves it to Record to ask for the kernels that it needs. Otherwise NewPrefill asks
	// for all.
	OnDemand bool

	halves bool // rows of KV are f16, see cache.GatherRunsConfig.Halves: for build cm
}

// Prefill is sparse MLA over rows of a bf16 workspace: every token attends the rows that its index
// list names. PrefillRef defines it. As with Decoder, all but KV is bound through descriptors: a
// chunk of tokens has to fit them.
//
// Source: FlashMLA flash_mla_sparse_fwd with d_qk = d_v = 512.
type Prefill struct {
	dev     *vk.Device
	cfg     PrefillConfig
	variant string
	k       []*opkit.Later // of the splitter's tilings
	merge   merge
	splitter
}

// PrefillArgs are the tensors of one Prefill.
type PrefillArgs struct {
	Q         tensor.Tensor // [T, H, 512] bf16
	KV        tensor.Tensor // [S, 512] bf16
	Indices   tensor.Tensor // [T, K] i32: rows of KV; negative or >= S: masked
	Lens      tensor.Tensor // [T] i32: entries of each list that count; absent: K
	Sink      tensor.Tensor // [H] f32; absent: none
	Out       tensor.Tensor // [T, H, 512] bf16, written
	MaxLogits tensor.Tensor // [T, H] f32, written: largest scaled score, -inf for an empty row; may be absent
	LSE       tensor.Tensor // [T, H] f32, written: natural log, +inf for an empty row; may be absent
	Scratch   vk.View       // ScratchBytes at a multiple of 256; not needed while that is 0
	Norm      QueryNorm     // with PrefillConfig.Norm, where NormsQueries permits; else absent: Q is normed and rotated
}

// NewPrefill picks a build and compiles it.
//
// Errors: vk.ErrArgument for a value out of range; vk.ErrMissingFeature for a forced variant that
// the device cannot run; those of vk.Device.Kernel.
func NewPrefill(dev *vk.Device, cfg PrefillConfig) (*Prefill, error) {
	const op = "new prefill"
	s, err := newSplitter(dev, op, cfg.Heads, cfg.Splits, cfg.Workgroups)
	if err != nil {
		return nil, err
	}
	if cfg.Scale, err = scaleOf(op, cfg.Scale); err != nil {
		return nil, err
	}
	tune := tuning.Of(dev)
	variant, list, err := chooseBuild(tune, dev.Adapter(), dev, "attn_prefill", cfg.Variant, cfg.MaxBytes, cfg.Heads)
	if err != nil {
		return nil, err
	}
	f := matrixFit{dev.Caps(), tune}
	if s.tilings, err = f.withLanes(layout(dev, variant), prefillLanes, variant, cfg.Heads, list); err != nil {
		return nil, err
	}
	if err = askRows(dev, variant, s.tilings); err != nil {
		return nil, err
	}
	k := s.kernels(dev, func(t tiling) opkit.Spec {
		x := opkit.Spec{
			Stem: t.stem, Variant: variant, Bound: boundPrefill,
			Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Write, vk.Write, vk.Write, vk.Write, vk.Write, vk.Read},
			Push:     attnPrefillPush{}, Subgroup: t.subgroup,
			Constants: append(opkit.Constants(t.heads, t.tile), t.constants...), Divisible: true,
		}
		if t.stem == prefillLanes { // positions and angles, too
			x.Bindings, x.Bound = append(x.Bindings, vk.Read), boundPrefill+2
			x.Constants = append(x.Constants, opkit.Bit(0, cfg.Norm && t.norms))
		}
		if halves := cfg.halves && variant == opkit.CM; halves || t.rows != 0 {
			x.Constants = append(x.Constants, opkit.Bit(0, halves))
		}
		if t.rows != 0 {
			x.Constants = append(x.Constants, uint32(t.rows))
		}
		return x
	})
	m, err := mergeOf(dev, variant)
	if err == nil && !cfg.OnDemand {
		err = opkit.Ask(append(k, m.k...)...)
	}
	if err != nil {
		return nil, err
	}
	return &Prefill{dev, cfg, variant, k, m, s}, nil
}

// prepare asks for the kernels of a Record of `tokens` tokens with lists of `width` entries.
func (o *Prefill) prepare(tokens, width int) error {
	p := o.plan(tokens, width)
	ask := []*opkit.Later{o.k[p.build]}
	if p.splits > 1 {
		ask = append(ask, o.merge.kernel(p.splits))
	}
	return opkit.Ask(ask...)
}

// boundPrefill is the number of tensors that builds bind which reach rows by address.
const boundPrefill = 9

// NormsQueries reports whether PrefillArgs.Norm has to be given for `tokens` tokens with lists of k
// entries: with PrefillConfig.Norm, where attn_prefill_lanes runs. Elsewhere it has to be absent.
func (o *Prefill) NormsQueries(tokens, k int) bool {
	return o.cfg.Norm && o.tilings[o.plan(tokens, k).build].norms
}

// Variant returns the name of the build in use.
func (o *Prefill) Variant() string { return o.variant }

// ScratchBytes is the size of PrefillArgs.Scratch that suits any number of tokens up to maxT with
// lists of up to k entries. Parts of a row are 2064 * T * Splits * H bytes (and up to 255 for
// alignment); whole rows need nothing.
func (o *Prefill) ScratchBytes(maxT, k int) uint64 { return o.scratchBytes(maxT, k) }

// Record checks the tensors and records the operation.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *Prefill) Record(rec *vk.Recorder, a PrefillArgs) error {
	const op = "prefill"
	if err := o.checkArgs(op, a); err != nil || a.Q.Shape[0] == 0 {
		return err
	}
	if err := o.attend(rec, op, a, 0); err != nil {
		return err
	}
	return o.join(rec, op, a)
}

// attend records the attention, of whole rows or of parts that join joins. The tensors were
// checked.
func (o *Prefill) attend(rec *vk.Recorder, op string, a PrefillArgs, flags uint32) error {
	t, s, width := a.Q.Shape[0], a.KV.Shape[0], a.Indices.Shape[1]
	plan := o.plan(t, width)
	splits := plan.splits
	ml, part, err := partials(op, a.Scratch, a.Out.View(), t, splits, o.heads)
	if err != nil {
		return err
	}
	kernel, err := o.k[plan.build].Kernel()
	if err != nil {
		return err
	}
	bind := []vk.View{a.Q.View(), a.Indices.View(), opkit.ViewOrDummy(o.dev, a.Lens), opkit.ViewOrDummy(o.dev, a.Sink), a.Out.View(),
		opkit.Or(a.MaxLogits, a.Out).View(), opkit.Or(a.LSE, a.Out).View(), part, ml}
	p := attnPrefillPush{
		KvAddr: a.KV.View().Address(), Rows: uint32(s), Heads: uint32(o.heads), Width: uint32(width), Splits: uint32(splits),
		Flags:      outputFlags(a.Sink, a.LSE, a.MaxLogits) | opkit.Bit(1, !a.Lens.IsZero()) | flags,
		ScaleLog2e: float32(float64(o.cfg.Scale) * math.Log2E),
	}
	if o.tilings[plan.build].stem == prefillLanes {
		p.TableRows, p.Eps = uint32(opkit.DimOrZero(a.Norm.Table, 0)), a.Norm.Eps
		bind = append(bind, opkit.ViewOrDummy(o.dev, a.Norm.Positions), opkit.ViewOrDummy(o.dev, a.Norm.Table))
	}
	return pkg.Dispatch(rec, op, o.variant, vk.Dispatch{
		Kernel: kernel, Groups: o.grid(plan, t), Push: vk.Bytes(&p), Bind: bind,
		Products: products(t, o.heads, width),
	}, opkit.Target{T: a.KV, Access: vk.Read})
}

// join records what joins the parts of rows, if there are any.
func (o *Prefill) join(rec *vk.Recorder, op string, a PrefillArgs) error {
	t := a.Q.Shape[0]
	splits := o.splits(t, a.Indices.Shape[1])
	if splits == 1 {
		return nil
	}
	ml, part, err := partials(op, a.Scratch, a.Out.View(), t, splits, o.heads)
	if err != nil {
		return err
	}
	return o.merge.record(rec, ml, part, splits, a.Sink, a.Out, a.LSE, a.MaxLogits, InverseRope{})
}

func (o *Prefill) checkArgs(op string, a PrefillArgs) error {
	t, h := opkit.DimOrZero(a.Q, 0), o.heads
	if err := opkit.FirstError(
		pkg.Check(op, "Q", a.Q, tensor.BF16, -1, h, cache.D),
		pkg.CheckRows(op, "KV", a.KV, tensor.BF16, -1, cache.D),
		pkg.Check(op, "Indices", a.Indices, tensor.I32, t, -1),
		pkg.Optional(op, "Lens", a.Lens, tensor.I32, t),
		pkg.Optional(op, "Sink", a.Sink, tensor.F32, h),
		pkg.Check(op, "Out", a.Out, tensor.BF16, t, h, cache.D),
		pkg.Optional(op, "MaxLogits", a.MaxLogits, tensor.F32, t, h),
		pkg.Optional(op, "LSE", a.LSE, tensor.F32, t, h),
		o.checkTokens(o.dev, op, t),
	); err != nil {
		return err
	}
	switch norms := o.NormsQueries(t, a.Indices.Shape[1]); {
	case !norms && !a.Norm.isZero():
		return pkg.Wrong(op, "Norm", a.Norm.Table, "absent: see Prefill.NormsQueries")
	case norms && t > 0:
		if err := checkNorm(o.dev, op, t, a.Norm); err != nil {
			return err
		}
	}
	return pkg.Reach(o.dev, op, o.variant, opkit.Target{Name: "KV", T: a.KV, Align: 16})
}
