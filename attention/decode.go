package attention

import (
	"math"
	"strings"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

type attnDecodePush struct {
	WinAddr, CompAddr                                          uint64
	Heads, WinWidth, CompWidth, WinPages, CompPages, WinStride uint32
	CompStride, Splits, Flags                                  uint32
	ScaleLog2e                                                 float32
	TableRows                                                  uint32
	Eps                                                        float32
}

// DecoderConfig configures a Decoder. Any number of heads works; powers of two from 16 on are fast,
// because a workgroup has a power of two of them and computes the rest as padding.
type DecoderConfig struct {
	Heads                          int          // H, 1 to 128
	WindowPage                     int          // slots of a page of the window cache (64)
	CompressedPage                 int          // slots of a page of the compressed cache (64 or 2); 0: there is none
	WindowRecord, CompressedRecord cache.Record // how their slots are stored: both cache.RecordV4, or neither

	Scale      float32 // softmax scale; 0 means DefaultScale
	MaxBytes   uint64  // of the largest pool; 0: what a descriptor holds
	Variant    string  // a build, as vkmla info lists them; "" picks the best
	Splits     int     // parts of each row, 1 to MaxSplits; 0: by rule, see ScratchBytes
	Workgroups int     // that fill the device, for that rule; 0: as the device says

	// Workspace is the most bytes of rows that a twopass variant dequantises at a time; 0:
	// defaultWorkspace. The rows of vk.Caps.StorageAlignment/4 tokens may take more.
	Workspace uint64

	// Invariant gives a token the same bits whatever T is and wherever in it the token stands. It
	// excludes the twopass variants.
	Invariant bool

	// OnDemand leaves it to Prepare and Record, and those of parts, to ask for the kernels that
	// they need. Otherwise NewDecoder asks for all. The twopass variants always do.
	OnDemand bool
}

// SlotSet is one of the two sets of cached rows that tokens attend.
type SlotSet struct {
	Cache   cache.KVCache
	Indices tensor.Tensor // [T, width] i32: global slots; negative or beyond the cache: masked
	Lens    tensor.Tensor // [T] i32: entries of each list that count
}

// isZero reports whether the set is absent.
func (s SlotSet) isZero() bool { return s.Cache.Pool.IsZero() }

// DecodeArgs are the tensors of one Decoder step.
type DecodeArgs struct {
	Q           tensor.Tensor // [T, H, 512] bf16
	Window      SlotSet
	Compressed  SlotSet       // zero for layers without compressed cache
	Sink        tensor.Tensor // [H] f32; absent: none
	Out         tensor.Tensor // [T, H, 512] bf16, written
	LSE         tensor.Tensor // [T, H] f32, written: natural log, +inf for empty rows; may be absent
	Scratch     vk.View       // ScratchBytes at a multiple of 256; not needed while that is 0
	InverseRope InverseRope   // absent: Out is as the formula says; only where InvertsRope permits
	Norm        QueryNorm     // absent: Q is normed and rotated; only where NormsQueries permits
}

// InverseRope asks for RoPE to be undone on the last 64 numbers of each head's output, rounded to
// bf16, at the token's position. It takes no launch of its own, and has the bits of
// projection.InverseRope.
type InverseRope struct {
	Positions tensor.Tensor // [T] i32, rows of Table; one outside counts as its nearest row
	Table     tensor.Tensor // [rows, 64] f32: a position's 32 cosines, then its sines
}

// isZero reports whether the output stays rotated.
func (o InverseRope) isZero() bool { return o.Table.IsZero() && o.Positions.IsZero() }

// Decoder is sparse MLA over paged caches: every token attends the slots of its two index
// lists, one softmax over both. The fused variants decode pages as they read them; the twopass
// ones first gather to a bf16 workspace (see TwoPass). DecodeRef defines it, by the formula of the
// package's documentation. A NaN in a head's query makes its output NaN or 0, as the device's max
// has it.
//
// All but the pools is bound through descriptors, so Q, Out and the index lists of a step each
// have to fit Caps.MaxStorageBufferRange: a step of 128 heads takes 131072 bytes a token in Q.
// Each has fewer than 2^31 elements.
//
// Source: FlashMLA flash_mla_with_kvcache with sparse indices, extra cache and attention sink;
// vLLM xpu_sparse_decode_fp8 for the two passes.
type Decoder struct {
	dev     *vk.Device
	cfg     DecoderConfig
	variant string
	k       []*opkit.Later // of the splitter's tilings
	merge   merge
	twoPass *TwoPass // for the twopass variants, and then nothing below is used
	splitter
}

// NewDecoder picks a build and compiles it.
//
// Errors: vk.ErrArgument for a value out of range; vk.ErrMissingFeature for a forced variant that
// the device cannot run; those of vk.Device.Kernel.
func NewDecoder(dev *vk.Device, cfg DecoderConfig) (*Decoder, error) {
	const op = "new decoder"
	if err := knownDecoder(cfg.Variant); err != nil {
		return nil, err
	}
	if rest, ok := strings.CutPrefix(cfg.Variant, opkit.TwoPass); ok {
		if cfg.Invariant {
			return nil, pkg.Wrong(op, "Variant", cfg.Variant, "one that reads pages in place, for Invariant")
		}
		two := cfg
		two.Variant = rest
		p, err := NewTwoPass(dev, TwoPassConfig{DecoderConfig: two})
		if err != nil {
			return nil, err
		}
		return &Decoder{dev: dev, cfg: cfg, variant: opkit.TwoPass + p.prefill.Variant(), twoPass: p}, nil
	}
	s, err := newSplitter(dev, op, cfg.Heads, cfg.Splits, cfg.Workgroups)
	if err != nil {
		return nil, err
	}
	if cfg.Scale, err = scaleOf(op, cfg.Scale); err != nil {
		return nil, err
	}
	cfg = cfg.withRecords()
	if err := checkPages(op, cfg); err != nil {
		return nil, err
	}
	s.invariant = cfg.Invariant
	tune := tuning.Of(dev)
	variant, list, err := chooseBuild(tune, dev.Adapter(), dev, "attn_decode", cfg.Variant, cfg.MaxBytes, cfg.Heads)
	if err != nil {
		return nil, err
	}
	if s.tilings, err = (matrixFit{dev.Caps(), tune}).withDecodeLanes(layout(dev, variant), variant, cfg.Heads, list); err != nil {
		return nil, err
	}
	if err = askRows(dev, variant, s.tilings); err != nil {
		return nil, err
	}
	float8 := float8Fits(dev.Caps(), tune, variant)
	if float8 {
		if float8, err = pkg.ConvertsCodes(dev); err != nil {
			return nil, err
		}
	}
	k := s.kernels(dev, func(t tiling) opkit.Spec {
		bound := boundDecode
		if t.rotates {
			bound += 2
		}
		return opkit.Spec{
			Stem: decodeStem(t.stem, float8), Variant: variant, Bound: bound,
			Bindings: []vk.Access{vk.Read, vk.Read, vk.Read, vk.Read, vk.Read, vk.Read,
				vk.Write, vk.Write, vk.Write, vk.Write, vk.Read, vk.Read},
			Push: attnDecodePush{}, Subgroup: t.subgroup,
			Constants: cfg.constants(t), Divisible: true,
		}
	})
	m, err := mergeOf(dev, variant)
	if err == nil && !cfg.OnDemand {
		err = opkit.Ask(append(k, m.k...)...)
	}
	if err != nil {
		return nil, err
	}
	return &Decoder{dev: dev, cfg: cfg, variant: variant, k: k, merge: m, splitter: s}, nil
}

// float8Fits tells whether a profile asks for attn_decode_float8, which has the device convert
// codes, and a device can run it and its probe.
func float8Fits(caps *vk.Caps, tune *tuning.Profile, variant string) bool {
	requires := shaders.Requires(opkit.Stem("attn_decode_float8", variant))
	return tune.Attention.Float8 && requires != nil && len(caps.Missing(append(requires, shaders.Requires("num_float8_cm")...))) == 0
}

// decodeStem is a tiling's stem, or attn_decode_float8 in place of attn_decode.
func decodeStem(stem string, float8 bool) string {
	if float8 && stem == "attn_decode" {
		return "attn_decode_float8"
	}
	return stem
}

// withRecords gives a cache that is absent the record of the other.
func (cfg DecoderConfig) withRecords() DecoderConfig {
	if cfg.CompressedPage == 0 {
		cfg.CompressedRecord = cfg.WindowRecord
	}
	return cfg
}

// constants are the specialisation constants of a tiling's kernel.
func (cfg DecoderConfig) constants(t tiling) []uint32 {
	list := append(opkit.Constants(cfg.WindowPage, max(cfg.CompressedPage, 1), t.heads, t.tile), t.constants...)
	records := []int{int(cfg.WindowRecord), int(cfg.CompressedRecord)}
	if t.places {
		records = append([]int{t.rows}, records...)
	}
	return opkit.AppendNonzero(list, records...)
}

// Prepare asks for the kernels of a Record of some tokens with lists of window and topk entries, so
// that they are compiled in the background. It is for DecoderConfig.OnDemand.
//
// Errors: those of vk.Device.Kernel.
func (o *Decoder) Prepare(tokens, window, topk int) error {
	if err := o.PrepareParts(tokens, window, topk); err != nil || o.twoPass != nil {
		return err
	}
	if p := o.plan(tokens, window+topk); p.splits > 1 {
		return opkit.Ask(o.merge.kernel(p.splits))
	}
	return nil
}

// PrepareParts is Prepare for RecordParts.
func (o *Decoder) PrepareParts(tokens, window, topk int) error {
	if o.twoPass != nil {
		return nil
	}
	return opkit.Ask(o.k[o.plan(tokens, window+topk).build])
}

// Variant returns the name of the build in use.
func (o *Decoder) Variant() string { return o.variant }

// Splits returns the number of parts of each row in a step of `tokens` tokens, with lists of window
// and topk entries. 1 means that rows are not split.
func (o *Decoder) Splits(tokens, window, topk int) int {
	if o.twoPass != nil {
		return o.twoPass.prefill.splits(tokens, packedWidth(window, topk))
	}
	return o.splits(tokens, window+topk)
}

// InvertsRope reports whether DecodeArgs.InverseRope may be given in a step of `tokens` tokens,
// with lists of window and topk entries. It may where rows are split, and where attn_decode_cm
// runs; never with the twopass variants.
func (o *Decoder) InvertsRope(tokens, window, topk int) bool {
	if o.twoPass != nil {
		return false
	}
	p := o.plan(tokens, window+topk)
	return p.splits > 1 || o.tilings[p.build].rotates
}

// boundDecode is the number of tensors that builds bind which reach pools by address. Those
// that undo RoPE also bind positions and angles.
const boundDecode = 10

// ScratchBytes is the size of DecodeArgs.Scratch that suits any number of tokens up to maxT with
// lists of up to window and topk entries.
//
// Where whole rows leave the device idle, rows are split into parts if that is estimated to be
// faster. The number of parts depends on sizes that are fixed when recorded, never on lengths in
// device memory. Parts take 2064 * T * Splits * H bytes and up to 255 for alignment; whole rows
// need nothing. The twopass variants need TwoPass.ScratchBytes.
func (o *Decoder) ScratchBytes(maxT, window, topk int) uint64 {
	if o.twoPass != nil {
		return o.twoPass.ScratchBytes(maxT, window, topk)
	}
	return o.scratchBytes(maxT, window+topk)
}

// Record checks the tensors and records the operation.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *Decoder) Record(rec *vk.Recorder, a DecodeArgs) error {
	const op = "decode"
	if pieces := o.pieces(a); len(pieces) > 0 {
		return o.recordPieces(op, rec, a, pieces)
	}
	return o.recordWhole(op, rec, a)
}

func (o *Decoder) recordWhole(op string, rec *vk.Recorder, a DecodeArgs) error {
	p, err := o.record(op, rec, a)
	if err != nil || p.Out.IsZero() {
		return err
	}
	return o.merge.record(rec, p.State.View(), p.Out.View(), p.Out.Shape[1], a.Sink, a.Out, a.LSE, tensor.Tensor{}, a.InverseRope)
}

func poolTarget(name string, c cache.KVCache) opkit.Target {
	return opkit.Target{Name: name + ".Cache.Pool", T: c.Pool, Align: c.Layout.Record.Align()}
}

// record records everything but the joining of parts, and returns these, if there are any.
func (o *Decoder) record(op string, rec *vk.Recorder, a DecodeArgs) (none Parts, err error) {
	t := opkit.DimOrZero(a.Q, 0)
	if err := o.checkRope(op, t, a); err != nil {
		return none, err
	}
	if o.twoPass != nil {
		return none, o.twoPass.Record(rec, a)
	}
	if err := opkit.FirstError(checkDecode(o.dev, op, o.cfg, a), o.checkTokens(o.dev, op, t)); err != nil || t == 0 {
		return none, err
	}
	if err := pkg.Reach(o.dev, op, o.variant,
		poolTarget("Window", a.Window.Cache), poolTarget("Compressed", a.Compressed.Cache)); err != nil {
		return none, err
	}
	win, comp := a.Window, a.Compressed
	plan := o.plan(t, opkit.DimOrZero(win.Indices, 1)+opkit.DimOrZero(comp.Indices, 1))
	kernel, err := o.k[plan.build].Kernel()
	if err != nil {
		return none, err
	}
	splits := plan.splits
	ml, part, err := partials(op, a.Scratch, a.Out.View(), t, splits, o.heads)
	if err != nil {
		return none, err
	}
	p := attnDecodePush{
		WinAddr: win.Cache.Pool.View().Address(), Heads: uint32(o.heads), WinWidth: uint32(win.Indices.Shape[1]),
		WinPages: uint32(win.Cache.Pages()), WinStride: uint32(win.Cache.Layout.Stride), Splits: uint32(splits),
		Flags: outputFlags(a.Sink, a.LSE, tensor.Tensor{}), ScaleLog2e: float32(float64(o.cfg.Scale) * math.Log2E),
	}
	dummy := o.dev.Dummy()
	pools := []opkit.Target{{T: win.Cache.Pool, Access: vk.Read}, {T: tensor.Of(dummy, tensor.U8, int(dummy.Size)), Access: vk.Read}}
	if !comp.isZero() {
		pools[1].T = comp.Cache.Pool
		p.Flags |= flagComp
		p.CompAddr, p.CompWidth = comp.Cache.Pool.View().Address(), uint32(comp.Indices.Shape[1])
		p.CompPages, p.CompStride = uint32(comp.Cache.Pages()), uint32(comp.Cache.Layout.Stride)
	}
	bind := []vk.View{a.Q.View(), win.Indices.View(), win.Lens.View(),
		opkit.ViewOrDummy(o.dev, comp.Indices), opkit.ViewOrDummy(o.dev, comp.Lens),
		opkit.ViewOrDummy(o.dev, a.Sink), a.Out.View(), opkit.Or(a.LSE, a.Out).View(), part, ml}
	if o.tilings[plan.build].rotates {
		var angles InverseRope
		if splits == 1 && !a.InverseRope.isZero() {
			angles = a.InverseRope
			p.Flags |= flagUnrope
		}
		if !a.Norm.isZero() {
			angles = InverseRope{a.Norm.Positions, a.Norm.Table}
			p.Flags |= flagNorm
			p.Eps = a.Norm.Eps
		}
		if !angles.isZero() {
			p.TableRows = uint32(angles.Table.Shape[0])
		}
		bind = append(bind, opkit.ViewOrDummy(o.dev, angles.Positions), opkit.ViewOrDummy(o.dev, angles.Table))
	}
	if err := pkg.Dispatch(rec, op, o.variant, vk.Dispatch{
		Kernel: kernel, Groups: o.grid(plan, t), Push: vk.Bytes(&p), Bind: bind,
		Products: products(t, o.heads, opkit.DimOrZero(win.Indices, 1)+opkit.DimOrZero(comp.Indices, 1)),
	}, pools...); err != nil || splits == 1 {
		return none, err
	}
	return Parts{Out: tensor.Of(part, tensor.F32, t, splits, o.heads, cache.D),
		State: tensor.Of(ml, tensor.F32, t, splits, o.heads, 4)}, nil
}
