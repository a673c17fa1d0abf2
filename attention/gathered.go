package attention

import (
	"cmp"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// GatheredConfig configures a Gathered.
type GatheredConfig struct {
	Heads                          int          // H, 1 to 128
	WindowPage                     int          // slots of a page of the window cache
	CompressedPage                 int          // slots of a page of the compressed cache; 0: there is none
	WindowRecord, CompressedRecord cache.Record // as DecoderConfig has them

	Rows       RowConfig // what tokens attend, and the room for it
	Scale      float32   // softmax scale; 0 means DefaultScale
	MaxBytes   uint64    // of the largest pool; 0: what a descriptor holds
	Variant    string    // a build, as vkmla info lists them; "" picks the best
	Splits     int       // parts of each row, 1 to MaxSplits; 0: by rule
	Workgroups int       // that fill the device, for that rule; 0: as the device says
	Norm       bool      // GatheredArgs.Norm is given where NormsQueries permits
}

// Gathered is the attention of a prompt's tokens over gathered rows: for a step of several
// requests, each with a few or many tokens, their entries and windows are dequantised to a
// workspace, entries in front of windows, which the prefill kernel then attends: as bf16, or as f16
// where the kernel multiplies that, so that each row is converted once. A step whose rows
// do not fit the workspace goes in pieces, by a RowPlan. It computes what Decoder does over the
// same lists: DecodeRef defines it.
//
// What is recorded suits every plan of at most Pieces pieces: who has which rows is read from the
// plan's tensors when the commands run.
//
// Source: vLLM DeepseekV4MLAAttention._forward_prefill
// (vllm/models/deepseek_v4/attention.py): gathers, combine_topk_swa_indices, flash_mla_sparse_fwd.
type Gathered struct {
	dev     *vk.Device
	cfg     GatheredConfig
	gather  [2]*cache.GatherRuns // of entries and of windows
	indices placedIndices
	prefill *Prefill
}

// GatheredArgs are the tensors of one Gathered.
type GatheredArgs struct {
	Q          tensor.Tensor // [T, H, 512] bf16
	Window     PagedRows
	Compressed PagedRows     // zero without entries
	Slots      tensor.Tensor // [T, Width] i32: slots of each token's entries; absent without entries
	TopK       tensor.Tensor // [T, Width] i32: the picks as entries of their request; absent: all are attended
	Positions  tensor.Tensor // [T] i32
	Plan       PlanTensors
	Workspace  tensor.Tensor // [Rows.Rows(), 512] of 16 bits, named bf16, overwritten
	Sink       tensor.Tensor // [H] f32; absent: none
	Out        tensor.Tensor // [T, H, 512] bf16, written
	LSE        tensor.Tensor // [T, H] f32, written: natural log, +inf for empty rows; may be absent
	Scratch    vk.View       // ScratchBytes at a multiple of 256
	Pieces     int           // of the plan, empty ones included; at least 1
	Norm       QueryNorm     // with GatheredConfig.Norm, where NormsQueries permits; else absent: Q is normed and rotated
}

// PagedRows are the rows of requests in a paged cache.
type PagedRows struct {
	Cache cache.KVCache
	Table tensor.Tensor // [R, W] i32 page ids
}

// PlanTensors are a RowPlan on the device.
type PlanTensors struct {
	Places tensor.Tensor // [T, 4] i32
	Heads  tensor.Tensor // [at least Pieces, 2, 2] i32
	Runs   tensor.Tensor // [.., 4] i32
}

// NewGathered picks builds. The kernels of the attention are asked for by Prepare or Record.
//
// Errors: vk.ErrArgument for a value out of range; vk.ErrMissingFeature for a forced variant that
// the device cannot run; those of vk.Device.Kernel.
func NewGathered(dev *vk.Device, cfg GatheredConfig) (*Gathered, error) {
	const op = "new gathered attention"
	c := cfg.Rows
	paged := DecoderConfig{WindowPage: cfg.WindowPage, CompressedPage: cfg.CompressedPage, MaxBytes: cfg.MaxBytes, Variant: cfg.Variant,
		WindowRecord: cfg.WindowRecord, CompressedRecord: cfg.CompressedRecord}.withRecords()
	if err := opkit.FirstError(
		checkPages(op, paged),
		pkg.Range(op, "Rows.Window", c.Window, 1, 1<<24), pkg.Range(op, "Rows.Width", c.Width, 0, 1<<24),
		pkg.Range(op, "Rows.Ratio", c.Ratio, 0, 1<<24),
		pkg.Range(op, "Rows.Windows", c.Windows, c.Window, 1<<30), pkg.Range(op, "Rows.Entries", c.Entries, c.Width, 1<<30),
	); err != nil {
		return nil, err
	}
	if (c.Width > 0) != (c.Ratio > 0) || (c.Width > 0) != (cfg.CompressedPage > 0) {
		return nil, pkg.Wrong(op, "Rows.Width, Rows.Ratio, CompressedPage", []int{c.Width, c.Ratio, cfg.CompressedPage},
			"all or none to be 0")
	}
	o := &Gathered{dev: dev, cfg: cfg}
	workspace := uint64(c.Rows()) * cache.D * 2
	var err error
	if o.prefill, err = NewPrefill(dev, PrefillConfig{Heads: cfg.Heads, Scale: cfg.Scale, MaxBytes: workspace, Variant: cfg.Variant,
		Splits: cfg.Splits, Workgroups: cfg.Workgroups, Norm: cfg.Norm, OnDemand: true, halves: true}); err != nil {
		return nil, err
	}
	if o.gather, err = pageGathers(op, paged, workspace, func(p cache.PagesConfig) (*cache.GatherRuns, error) {
		return cache.NewGatherRuns(dev, cache.GatherRunsConfig{PagesConfig: p, Halves: o.prefill.variant == opkit.CM})
	}); err != nil {
		return nil, err
	}
	o.indices, err = newPlacedIndices(dev)
	return o, err
}

// pageGathers makes the gathers of the compressed and of the window cache, as far as there are
// such, to a workspace. A forced build of the prefill kernel says how they reach memory.
func pageGathers[T any](op string, cfg DecoderConfig, workspace uint64, gather func(cache.PagesConfig) (T, error)) (all [2]T, err error) {
	for i, p := range []cache.PagesConfig{
		{Page: cfg.CompressedPage, Record: cfg.CompressedRecord}, {Page: cfg.WindowPage, Record: cfg.WindowRecord},
	} {
		if p.Page == 0 {
			continue
		}
		if p.MaxBytes = max(cfg.MaxBytes, workspace); cfg.Variant == opkit.Base || cfg.Variant == opkit.DA {
			p.Variant = cfg.Variant
		}
		if all[i], err = gather(p); err != nil {
			return all, pkg.Wrap(op, err)
		}
	}
	return all, nil
}

// Prepare asks for the kernels of a Record of some tokens, so that they are compiled in the
// background.
//
// Errors: those of vk.Device.Kernel.
func (o *Gathered) Prepare(tokens int) error {
	return o.prefill.prepare(tokens, o.cfg.Rows.gatheredWidth())
}

// NormsQueries is Prefill.NormsQueries for a step of `tokens` tokens.
func (o *Gathered) NormsQueries(tokens int) bool {
	return o.prefill.NormsQueries(tokens, o.cfg.Rows.gatheredWidth())
}

// Variant returns the name of the build of the attention.
func (o *Gathered) Variant() string { return o.prefill.Variant() }

// ScratchBytes is the size of GatheredArgs.Scratch for T tokens: lists of T * round_up(Window +
// Width, 16) * 4 bytes, T lengths of 4 bytes, and what Prefill.ScratchBytes says.
func (o *Gathered) ScratchBytes(t int) uint64 {
	width := o.cfg.Rows.gatheredWidth()
	return align(uint64(t)*uint64(width)*4) + align(uint64(t)*4) + o.prefill.ScratchBytes(t, width)
}

// Record checks the tensors and records gathers, lists and attention, piece by piece.
//
// Errors: vk.ErrArgument, with nothing recorded; those of vk.Recorder.Dispatch.
func (o *Gathered) Record(rec *vk.Recorder, a GatheredArgs) error {
	const op = "gathered attention"
	c := o.cfg.Rows
	if err := o.check(op, a); err != nil || a.Q.Shape[0] == 0 {
		return err
	}
	t, width := a.Q.Shape[0], c.gatheredWidth()
	lists, lens := align(uint64(t)*uint64(width)*4), align(uint64(t)*4)
	s := a.Scratch
	p := PrefillArgs{Q: a.Q, KV: a.Workspace, Sink: a.Sink, Out: a.Out, LSE: a.LSE, Norm: a.Norm,
		Indices: tensor.Of(s.Buffer.View(s.Offset, lists), tensor.I32, t, width),
		Lens:    tensor.Of(s.Buffer.View(s.Offset+lists, lens), tensor.I32, t),
		Scratch: s.Buffer.View(s.Offset+lists+lens, s.Size-lists-lens)}
	if err := opkit.FirstError(o.prefill.checkArgs(op, p), pkg.Bindable(o.dev, op, "lists", p.Indices)); err != nil {
		return err
	}
	runs := o.runs(a)
	for i, r := range runs {
		if o.gather[i] == nil {
			continue
		}
		if err := o.gather[i].Check(r); err != nil {
			return pkg.Wrap(op, err)
		}
	}
	flags := opkit.Bit(4, a.Pieces > 1) // tokens with negative lengths, of other pieces, are left alone
	for piece := range a.Pieces {
		for i, r := range runs {
			if r.Piece = piece; o.gather[i] == nil {
				continue
			}
			if err := o.gather[i].Record(rec, r); err != nil {
				return pkg.Wrap(op, err)
			}
		}
		if err := o.indices.record(rec, piece, c, a.TopK, a.Positions, a.Plan.Places, p.Indices, p.Lens); err != nil {
			return err
		}
		if err := o.prefill.attend(rec, op, p, flags); err != nil {
			return err
		}
	}
	return o.prefill.join(rec, op, p)
}

// runs are the arguments of the gathers of a piece; that of a set without rows is zero.
func (o *Gathered) runs(a GatheredArgs) (list [2]cache.GatherRunsArgs) {
	c := o.cfg.Rows
	for i, from := range []PagedRows{a.Compressed, a.Window} {
		if o.gather[i] == nil {
			continue
		}
		x := cache.GatherRunsArgs{Out: a.Workspace.Rows(0, c.Entries), Cache: from.Cache, Heads: a.Plan.Heads, Runs: a.Plan.Runs,
			Table: from.Table, Lists: a.Slots, Set: i}
		if i == 1 {
			x.Out, x.First, x.Lists = a.Workspace.Rows(c.Entries, c.Rows()), c.Entries, tensor.Tensor{}
		}
		list[i] = x
	}
	return list
}

func (o *Gathered) check(op string, a GatheredArgs) error {
	c, h, t := o.cfg.Rows, o.cfg.Heads, opkit.DimOrZero(a.Q, 0)
	err := opkit.FirstError(
		pkg.Check(op, "Q", a.Q, tensor.BF16, -1, h, cache.D),
		pkg.Check(op, "Positions", a.Positions, tensor.I32, t),
		pkg.Check(op, "Plan.Places", a.Plan.Places, tensor.I32, t, 4),
		pkg.Check(op, "Plan.Heads", a.Plan.Heads, tensor.I32, -1, 2, 2),
		pkg.Check(op, "Plan.Runs", a.Plan.Runs, tensor.I32, -1, 4),
		pkg.CheckRows(op, "Workspace", a.Workspace, tensor.BF16, c.Rows(), cache.D),
		pkg.Optional(op, "TopK", a.TopK, tensor.I32, t, c.Width),
	)
	if err == nil && c.Width > 0 {
		err = pkg.Check(op, "Slots", a.Slots, tensor.I32, t, c.Width)
	}
	if err != nil {
		return err
	}
	s, need := a.Scratch, o.ScratchBytes(t)
	holds := !s.IsZero() && s.Size >= need && s.Offset%256 == 0 && s.Offset <= s.Buffer.Size() && s.Size <= s.Buffer.Size()-s.Offset
	switch {
	case a.Pieces < 1 || a.Pieces > a.Plan.Heads.Shape[0]:
		return pkg.Wrong(op, "Pieces", a.Pieces, "1 to %d, the pieces of Plan.Heads", a.Plan.Heads.Shape[0])
	case c.Width == 0 && (!a.TopK.IsZero() || !a.Slots.IsZero()):
		return pkg.Wrong(op, "TopK, Slots", cmp.Or(a.TopK.DType, a.Slots.DType), "absent without entries")
	case t > 0 && !holds:
		return pkg.Wrong(op, "Scratch", s, "%d bytes at a multiple of 256", need)
	}
	return nil
}
