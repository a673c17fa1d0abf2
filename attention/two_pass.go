package attention

import (
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TwoPassConfig configures a TwoPass. Variant is one of PrefillVariants (the build
// of the second pass); MaxBytes must cover the workspace too (WorkspaceBytes).
type TwoPassConfig struct {
	DecoderConfig

	// ZeroMasked counts an entry of an index list that is masked but within the
	// list's length as a row of zeros with score 0, instead of leaving it out. It is
	// what vLLM's XPU path does (together with ignoring the sink: give none), and is
	// here to be compared with that path, not to be used.
	ZeroMasked bool
}

// TwoPass is the decode attention of Decoder in two passes: the slots of both
// index lists are dequantised to a bf16 workspace, of which the prefill kernel
// then attends each token's part. TwoPassRef defines it.
//
// The workspace has to fit what both passes can reach: a descriptor's range, unless
// MaxBytes asks for more. A step is not divided to make it fit.
//
// Source: vLLM xpu_sparse_decode_fp8
// (vllm/models/deepseek_v4/xpu/xpu_sparse_decode_fp8.py).
type TwoPass struct {
	dev     *vk.Device
	cfg     TwoPassConfig
	gather  [2]*cache.GatherSlots // of the compressed and of the window cache
	pack    packIndices
	prefill *Prefill
}

// NewTwoPass picks builds and compiles them.
//
// Errors: vk.ErrArgument for a value out of range; vk.ErrMissingFeature for a
// forced variant that the device cannot run; those of vk.Device.Kernel.
func NewTwoPass(dev *vk.Device, cfg TwoPassConfig) (*TwoPass, error) {
	const op = "new two-pass decode"
	if err := checkPages(op, cfg.DecoderConfig); err != nil {
		return nil, err
	}
	prefill, err := NewPrefill(dev, PrefillConfig{Heads: cfg.Heads, Scale: cfg.Scale, MaxBytes: cfg.MaxBytes,
		Variant: cfg.Variant, Splits: cfg.Splits, Workgroups: cfg.Workgroups})
	if err != nil {
		return nil, err
	}
	o := &TwoPass{dev: dev, cfg: cfg, prefill: prefill}
	// A forced build says how memory is reached, and the first pass follows it.
	gather := ""
	if cfg.Variant == VariantBase || cfg.Variant == VariantDA {
		gather = cfg.Variant
	}
	for i, page := range []int{cfg.CompressedPage, cfg.WindowPage} {
		if page == 0 {
			continue
		}
		o.gather[i], err = cache.NewGatherSlots(dev, cache.GatherSlotsConfig{Page: page, MaxBytes: cfg.MaxBytes, Variant: gather})
		if err != nil {
			return nil, pkg.Wrap(op, err)
		}
	}
	if o.pack, err = newPackIndices(dev); err != nil {
		return nil, err
	}
	return o, nil
}

// Variant returns the name of the build that the second pass uses.
func (o *TwoPass) Variant() string { return o.prefill.Variant() }

// WorkspaceBytes is the size of the dequantised rows of T tokens with lists of
// window and topk entries: T * (window + topk) * 1024 bytes.
func WorkspaceBytes(tokens, window, topk int) uint64 {
	return uint64(tokens) * uint64(window+topk) * D * 2
}

// ScratchBytes is the size of DecodeArgs.Scratch that suits any number of tokens up
// to maxT with lists of up to window and topk entries: WorkspaceBytes, packed
// indices of T * round_up(window + topk, 16) * 4 bytes, T lengths of 4 bytes, and
// what the second pass needs (Prefill.ScratchBytes), each but the last rounded up
// to 256 bytes.
func (o *TwoPass) ScratchBytes(maxT, window, topk int) uint64 {
	width := packedWidth(window, topk)
	return align(WorkspaceBytes(maxT, window, topk)) + align(uint64(maxT)*uint64(width)*4) + align(uint64(maxT)*4) +
		o.prefill.ScratchBytes(maxT, width)
}

// Record checks the tensors and records both passes.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *TwoPass) Record(rec *vk.Recorder, a DecodeArgs) error {
	const op = "two-pass decode"
	t := opkit.Dim(a.Q, 0)
	if err := opkit.First(checkDecode(o.dev, op, o.cfg.DecoderConfig, a), o.prefill.checkTokens(o.dev, op, t)); err != nil || t == 0 {
		return err
	}
	window, topk := a.Window.Indices.Shape[1], opkit.Dim(a.Compressed.Indices, 1)
	if window+topk == 0 {
		return pkg.Wrong(op, "Window.Indices", a.Window.Indices, "at least one column in one of the sets")
	}
	if t*packedWidth(window, topk) > math.MaxInt32 {
		return pkg.Wrong(op, "Q", a.Q, "fewer than 2^31 rows in all lists together")
	}
	ws, err := o.divide(op, a, t, window, topk)
	if err != nil {
		return err
	}
	// What the two passes would refuse later is refused before anything is recorded.
	if err := opkit.First(
		pkg.Reach(o.dev, op, o.prefill.variant, opkit.Target{Name: "workspace", T: ws.rows, Align: 16}),
		pkg.Bindable(o.dev, op, "Q", a.Q),
		pkg.Bindable(o.dev, op, "Window.Indices", a.Window.Indices),
		pkg.Bindable(o.dev, op, "Compressed.Indices", a.Compressed.Indices),
		pkg.Bindable(o.dev, op, "packed indices", ws.packed),
		pkg.Bindable(o.dev, op, "Scratch", tensor.Of(ws.rest, tensor.U8, int(ws.rest.Size))),
	); err != nil {
		return err
	}
	for i, s := range []SlotSet{a.Compressed, a.Window} {
		if s.IsZero() || opkit.Dim(s.Indices, 1) == 0 {
			continue
		}
		name, build := []string{"Compressed", "Window"}[i], o.gather[i].Variant()
		if err := pkg.Reach(o.dev, op, build,
			opkit.Target{Name: name + ".Cache.Pool", T: s.Cache.Pool, Align: 8},
			opkit.Target{Name: "workspace", T: ws.sets[i], Align: 16},
		); err != nil {
			return err
		}
	}

	for i, s := range []SlotSet{a.Compressed, a.Window} {
		if s.IsZero() || opkit.Dim(s.Indices, 1) == 0 {
			continue
		}
		flat := tensor.Of(s.Indices.View(), tensor.I32, s.Indices.Len())
		if err := o.gather[i].Record(rec, cache.GatherSlotsArgs{Out: ws.sets[i], Cache: s.Cache, Indices: flat}); err != nil {
			return pkg.Wrap(op, err)
		}
	}
	if err := o.pack.record(rec, a.Window, a.Compressed, o.cfg.ZeroMasked, ws.packed, ws.lens); err != nil {
		return err
	}
	return o.prefill.Record(rec, PrefillArgs{Q: a.Q, KV: ws.rows, Indices: ws.packed, Lens: ws.lens, Sink: a.Sink,
		Out: a.Out, LSE: a.LSE, Scratch: ws.rest})
}

// workspace is how a TwoPass divides its scratch memory.
type workspace struct {
	rows   tensor.Tensor    // [T*(topk+window), 512] bf16
	sets   [2]tensor.Tensor // of rows: compressed [T*topk, 512], window [T*window, 512]
	packed tensor.Tensor    // [T, packedWidth] i32
	lens   tensor.Tensor    // [T] i32
	rest   vk.View          // for the second pass
}

func (o *TwoPass) divide(op string, a DecodeArgs, t, window, topk int) (workspace, error) {
	var w workspace
	width := packedWidth(window, topk)
	parts := []uint64{align(WorkspaceBytes(t, window, topk)), align(uint64(t) * uint64(width) * 4), align(uint64(t) * 4), 0}
	if n := o.prefill.splits(t, width); n > 1 {
		parts[3] = partialBytes(t, n, o.cfg.Heads)
	}
	need := parts[0] + parts[1] + parts[2] + parts[3]
	s := a.Scratch
	if s.IsZero() || s.Size < need || s.Offset%256 != 0 || s.Offset > s.Buffer.Size() || s.Size > s.Buffer.Size()-s.Offset {
		return w, pkg.Wrong(op, "Scratch", s, "%d bytes at a multiple of 256", need)
	}
	at := func(i int) vk.View {
		off := s.Offset
		for _, p := range parts[:i] {
			off += p
		}
		return s.Buffer.View(off, parts[i])
	}
	w.rows = tensor.Of(at(0), tensor.BF16, t*(topk+window), D)
	w.sets = [2]tensor.Tensor{w.rows.Rows(0, t*topk), w.rows.Rows(t*topk, t*(topk+window))}
	w.packed = tensor.Of(at(1), tensor.I32, t, width)
	w.lens = tensor.Of(at(2), tensor.I32, t)
	w.rest = at(3)
	return w, nil
}
