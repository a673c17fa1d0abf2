package attention

import (
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// TwoPassConfig configures a TwoPass. Variant is the build of the second pass.
type TwoPassConfig struct {
	DecoderConfig

	// ZeroMasked counts an entry of an index list that is masked but within the
	// list's length as a row of zeros with score 0, instead of leaving it out. It is
	// what vLLM's XPU path does (together with ignoring the sink: give none), and is
	// here to be compared with that path, not to be used.
	ZeroMasked bool
}

// TwoPass is the decode attention of Decoder in two passes: the slots of both index lists are
// dequantised to a bf16 workspace, and the prefill kernel then attends each token's part of it.
// TwoPassRef defines it.
//
// Tokens go in pieces whose rows fit DecoderConfig.Workspace.
//
// Source: vLLM xpu_sparse_decode_fp8
// (vllm/models/deepseek_v4/xpu/xpu_sparse_decode_fp8.py).
type TwoPass struct {
	dev     *vk.Device
	cfg     TwoPassConfig
	gather  [2]*cache.GatherSlots // of the compressed and of the window cache
	pack    packIndices
	prefill *Prefill
	bytes   uint64 // of the rows of a piece, at most
}

// NewTwoPass picks builds and compiles them.
//
// Errors: vk.ErrArgument for a value out of range; vk.ErrMissingFeature for a
// forced variant that the device cannot run; those of vk.Device.Kernel.
func NewTwoPass(dev *vk.Device, cfg TwoPassConfig) (*TwoPass, error) {
	const op = "new two-pass decode"
	cfg.DecoderConfig = cfg.withRecords()
	if err := checkPages(op, cfg.DecoderConfig); err != nil {
		return nil, err
	}
	bytes := WorkspaceBytes(dev, cfg.Variant, cfg.Workspace)
	prefill, err := NewPrefill(dev, PrefillConfig{Heads: cfg.Heads, Scale: cfg.Scale, MaxBytes: bytes,
		Variant: cfg.Variant, Splits: cfg.Splits, Workgroups: cfg.Workgroups})
	if err != nil {
		return nil, err
	}
	o := &TwoPass{dev: dev, cfg: cfg, prefill: prefill, bytes: bytes}
	if o.gather, err = pageGathers(op, cfg.DecoderConfig, bytes, func(p cache.PagesConfig) (*cache.GatherSlots, error) {
		return cache.NewGatherSlots(dev, p)
	}); err != nil {
		return nil, err
	}
	if o.pack, err = newPackIndices(dev); err != nil {
		return nil, err
	}
	return o, nil
}

// piece returns how many of T tokens are taken at a time: as many as have room for their rows, in
// multiples of those after which lengths can be bound.
func (o *TwoPass) piece(t, window, topk int) int {
	least := max(1, int(o.dev.Caps().StorageAlignment)/4)
	n := int(o.bytes / (uint64(max(window+topk, 1)) * cache.D * 2))
	return min(t, max(least, n/least*least))
}

// ScratchBytes is the size of DecodeArgs.Scratch that suits any number of tokens up to maxT with
// lists of up to window and topk entries. For pieces of P tokens, P = maxT or fewer as
// DecoderConfig.Workspace permits: rows of P * (window + topk) * 1024 bytes, packed indices of
// P * round_up(window + topk, 16) * 4 bytes, P lengths of 4 bytes, and what the second pass needs
// (Prefill.ScratchBytes), each but the last rounded up to 256 bytes. Shorter lists make longer
// pieces, which need no more.
func (o *TwoPass) ScratchBytes(maxT, window, topk int) uint64 {
	p, width := o.piece(maxT, window, topk), packedWidth(window, topk)
	parts := o.parts(p, window, topk)
	return parts[0] + parts[1] + parts[2] + o.prefill.ScratchBytes(p, width)
}

// parts are the bytes of rows, packed indices and lengths of p tokens.
func (o *TwoPass) parts(p, window, topk int) [3]uint64 {
	n, width := uint64(p), uint64(packedWidth(window, topk))
	return [3]uint64{align(n * uint64(window+topk) * cache.D * 2), align(n * width * 4), align(n * 4)}
}

// Record checks the tensors and records both passes.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *TwoPass) Record(rec *vk.Recorder, a DecodeArgs) error {
	const op = "two-pass decode"
	t := opkit.DimOrZero(a.Q, 0)
	if err := opkit.FirstError(checkDecode(o.dev, op, o.cfg.DecoderConfig, a), o.prefill.checkTokens(o.dev, op, t)); err != nil || t == 0 {
		return err
	}
	window, topk := a.Window.Indices.Shape[1], opkit.DimOrZero(a.Compressed.Indices, 1)
	if window+topk == 0 {
		return pkg.Wrong(op, "Window.Indices", a.Window.Indices, "at least one column in one of the sets")
	}
	if t*packedWidth(window, topk) > math.MaxInt32 {
		return pkg.Wrong(op, "Q", a.Q, "fewer than 2^31 rows in all lists together")
	}
	if err := opkit.FirstError(
		pkg.Bindable(o.dev, op, "Q", a.Q),
		pkg.Bindable(o.dev, op, "Window.Indices", a.Window.Indices),
		pkg.Bindable(o.dev, op, "Compressed.Indices", a.Compressed.Indices),
	); err != nil {
		return err
	}
	each := o.piece(t, window, topk)
	var pieces []twoPassPiece // everything is checked before anything is recorded
	for at := 0; at < t; at += each {
		p, err := o.divide(op, a, at, min(at+each, t), window, topk)
		if err != nil {
			return err
		}
		pieces = append(pieces, p)
	}
	for _, p := range pieces {
		if err := o.record(rec, op, p); err != nil {
			return err
		}
	}
	return nil
}

// record records both passes of a piece.
func (o *TwoPass) record(rec *vk.Recorder, op string, p twoPassPiece) error {
	a := p.args
	for i, s := range []SlotSet{a.Compressed, a.Window} {
		if s.isZero() || opkit.DimOrZero(s.Indices, 1) == 0 {
			continue
		}
		flat := tensor.Of(s.Indices.View(), tensor.I32, s.Indices.Len())
		if err := o.gather[i].Record(rec, cache.GatherSlotsArgs{Out: p.sets[i], Cache: s.Cache, Indices: flat}); err != nil {
			return pkg.Wrap(op, err)
		}
	}
	if err := o.pack.record(rec, a.Window, a.Compressed, o.cfg.ZeroMasked, p.packed, p.lens); err != nil {
		return err
	}
	return o.prefill.Record(rec, PrefillArgs{Q: a.Q, KV: p.rows, Indices: p.packed, Lens: p.lens, Sink: a.Sink,
		Out: a.Out, LSE: a.LSE, Scratch: p.rest})
}

// twoPassPiece is some of the tokens, and how they divide the scratch memory.
type twoPassPiece struct {
	args   DecodeArgs
	rows   tensor.Tensor    // [P*(topk+window), 512] bf16
	sets   [2]tensor.Tensor // of rows: compressed [P*topk, 512], window [P*window, 512]
	packed tensor.Tensor    // [P, packedWidth] i32
	lens   tensor.Tensor    // [P] i32
	rest   vk.View          // for the second pass
}

// divide makes the piece of tokens low to high-1, and checks it.
func (o *TwoPass) divide(op string, a DecodeArgs, low, high, window, topk int) (w twoPassPiece, err error) {
	for _, x := range []*tensor.Tensor{&a.Q, &a.Out, &a.LSE, &a.Window.Indices, &a.Window.Lens, &a.Compressed.Indices, &a.Compressed.Lens} {
		if !x.IsZero() {
			*x = x.Rows(low, high)
		}
	}
	w.args = a
	t, width := high-low, packedWidth(window, topk)
	parts, rest := o.parts(t, window, topk), uint64(0)
	if n := o.prefill.splits(t, width); n > 1 {
		rest = partialBytes(t, n, o.cfg.Heads)
	}
	need, s := parts[0]+parts[1]+parts[2]+rest, a.Scratch
	if s.IsZero() || s.Size < need || s.Offset%256 != 0 || s.Offset > s.Buffer.Size() || s.Size > s.Buffer.Size()-s.Offset {
		return w, pkg.Wrong(op, "Scratch", s, "%d bytes at a multiple of 256", need)
	}
	at := s.Offset
	take := func(n uint64) vk.View {
		at += n
		return s.Buffer.View(at-n, n)
	}
	w.rows = tensor.Of(take(parts[0]), tensor.BF16, t*(topk+window), cache.D)
	w.sets = [2]tensor.Tensor{w.rows.Rows(0, t*topk), w.rows.Rows(t*topk, t*(topk+window))}
	w.packed = tensor.Of(take(parts[1]), tensor.I32, t, width)
	w.lens = tensor.Of(take(parts[2]), tensor.I32, t)
	w.rest = take(rest)
	if err := opkit.FirstError(
		pkg.Reach(o.dev, op, o.prefill.variant, opkit.Target{Name: "workspace", T: w.rows, Align: 16}),
		pkg.Bindable(o.dev, op, "packed indices", w.packed),
		pkg.Bindable(o.dev, op, "Scratch", tensor.Of(w.rest, tensor.U8, int(w.rest.Size))),
	); err != nil {
		return w, err
	}
	for i, s := range []SlotSet{a.Compressed, a.Window} {
		if s.isZero() || opkit.DimOrZero(s.Indices, 1) == 0 {
			continue
		}
		name, build := []string{"Compressed", "Window"}[i], o.gather[i].Variant()
		if err := pkg.Reach(o.dev, op, build,
			opkit.Target{Name: name + ".Cache.Pool", T: s.Cache.Pool, Align: 8},
			opkit.Target{Name: "workspace", T: w.sets[i], Align: 16},
		); err != nil {
			return w, err
		}
	}
	return w, nil
}
