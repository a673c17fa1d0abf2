package layer

import (
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// mla is the attention of the heads to their windows and entries: over pages in place, or over rows
// gathered from them.
type mla struct {
	op           *attention.Decoder  // nil where rows are gathered
	rows         *attention.Gathered // nil where they are not
	width        int                 // of rows of entries; 0: the layer attends none
	splits       int                 // parts of a row, of op
	unropes      bool                // RoPE can be undone in its output on the way
	normsQueries bool                // its queries can be normed and get RoPE on the way

	room attention.RowConfig // of gathered rows; without any where none are

	q, o    tensor.Tensor // [T, H, 512] bf16
	scratch tensor.Tensor
}

// gathers reports whether the attention gathers rows: by its variant, or else by the profile.
// Invariant layers do not: the kernels that read pages give a token the same bits in any step.
func (cfg *Config) gathers(dev *vk.Device) bool {
	if cfg.Spec.Block {
		return false // rows are planned by positions, and a block's tokens attend newer ones
	}
	if cfg.Variant != "" {
		return strings.HasPrefix(cfg.Variant, opkit.TwoPass)
	}
	return !cfg.Invariant && attention.Gathers(dev, cfg.Tokens, cfg.Requests) && cfg.listsFit(dev) == nil
}

// Room divides the workspace of gathered rows; without rows if none are gathered.
func (cfg *Config) Room(dev *vk.Device) (room attention.RowConfig) {
	if cfg.gathers(dev) {
		bytes := attention.WorkspaceBytes(dev, cfg.rowsVariant(), cfg.Workspace)
		room = cfg.rows().Divide(bytes, cfg.Tokens, max(cfg.Requests, 1), cfg.MaxLen)
	}
	return room
}

// LeastWorkspace is the size of the rows that one token attends.
func (cfg *Config) LeastWorkspace() uint64 { return uint64(cfg.rows().LeastRows()) * headDim * 2 }

// rows describes the rows that tokens attend.
func (cfg *Config) rows() attention.RowConfig {
	c := attention.RowConfig{Window: cfg.window(), Width: cfg.entryWidth(), Picks: cfg.Spec.Picks != model.PickNone}
	if c.Width > 0 {
		c.Ratio = cfg.Spec.Ratio
	}
	return c
}

// window returns the most rows of the window that a token attends.
func (cfg *Config) window() int { return cfg.Spec.WindowRows(cfg.Model) }

// rowsVariant is the build of the attention over gathered rows.
func (cfg *Config) rowsVariant() string {
	rest, _ := strings.CutPrefix(cfg.Variant, opkit.TwoPass)
	return rest
}

// listsFit reports whether a descriptor holds the lists of gathered rows.
func (cfg *Config) listsFit(dev *vk.Device) error {
	limit, need := dev.Caps().MaxStorageBufferRange, cfg.rows().ListBytes(cfg.Tokens)
	if need <= limit {
		return nil
	}
	return &vk.ArgumentError{Op: opNewKernels, Arg: "Tokens", Got: fmt.Sprintf("%d, lists of %d bytes", cfg.Tokens, need),
		Want: fmt.Sprintf("lists of at most %d bytes", limit)}
}

func (x *mla) build(k *Kernels) (err error) {
	c, t, window := &k.cfg.Caches, k.cfg.Tokens, k.cfg.window()
	most, page := c.Window.Pool.Bytes(), 0
	if x.width > 0 {
		page, most = c.Compressed.Layout.Page, max(most, c.Compressed.Pool.Bytes())
	}
	records := [2]cache.Record{c.Window.Layout.Record, c.Compressed.Layout.Record}
	if x.gathers() {
		x.rows, err = attention.NewGathered(k.dev, attention.GatheredConfig{Heads: k.heads, WindowPage: c.Window.Layout.Page,
			WindowRecord: records[0], CompressedRecord: records[1], CompressedPage: page, Rows: x.room,
			MaxBytes: most, Variant: k.cfg.rowsVariant(),
			Norm: !k.cfg.Model.PlainQueries})
		if err == nil {
			x.normsQueries = !k.cfg.Model.PlainQueries && x.rows.NormsQueries(t)
		}
		return err
	}
	if x.op, err = attention.NewDecoder(k.dev, attention.DecoderConfig{Heads: k.heads, WindowPage: c.Window.Layout.Page,
		WindowRecord: records[0], CompressedRecord: records[1], CompressedPage: page, Variant: k.cfg.Variant,
		MaxBytes: most, Invariant: k.cfg.Invariant, OnDemand: true}); err != nil {
		return err
	}
	x.splits = x.op.Splits(t, window, x.width)
	x.unropes, x.normsQueries = x.op.InvertsRope(t, window, x.width), !k.cfg.Model.PlainQueries && x.op.NormsQueries(t, window, x.width)
	return nil
}

// gathers tells whether rows are gathered.
func (x *mla) gathers() bool { return x.room.Rows() > 0 }

// tensors wants scratch. What joins the attention's parts may be the last launch of the layer.
func (x *mla) tensors(s scratch, k *Kernels) {
	t := k.cfg.Tokens
	s.Add("q", picking|attending, &x.q, tensor.BF16, t, k.heads, headDim)
	s.Add("o", attending|edges, &x.o, tensor.BF16, t, k.heads, headDim)
	switch {
	case x.op != nil:
		s.Add("attention", attending|edges, &x.scratch, tensor.U8, int(x.op.ScratchBytes(t, k.cfg.window(), x.width)))
	case x.rows != nil:
		s.Add("attention", attending|edges, &x.scratch, tensor.U8, int(x.rows.ScratchBytes(t)))
	}
}

// prepare asks for the kernels that record launches. Those of gathered rows were asked for when
// they were made.
func (x *mla) prepare(k *Kernels, joined bool) error {
	t, window := k.cfg.Tokens, k.cfg.window()
	switch {
	case x.op == nil:
		return x.rows.Prepare(t)
	case joined:
		return x.op.PrepareParts(t, window, x.width)
	}
	return x.op.Prepare(t, window, x.width)
}

// record records the attention over pages. With joined another launch has to join its parts.
func (x *mla) record(rec *vk.Recorder, a attention.DecodeArgs, joined bool) (attention.Parts, error) {
	a.Q, a.Out, a.Scratch = x.q, x.o, x.scratch.View()
	if joined {
		return x.op.RecordParts(rec, a)
	}
	return attention.Parts{}, x.op.Record(rec, a)
}

// recordRows records the attention over gathered rows.
func (x *mla) recordRows(rec *vk.Recorder, a attention.GatheredArgs) error {
	a.Q, a.Out, a.Scratch = x.q, x.o, x.scratch.View()
	return x.rows.Record(rec, a)
}
