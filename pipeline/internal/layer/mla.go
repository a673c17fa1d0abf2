package layer

import (
	"strings"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// mla is the attention of the heads to their windows and entries.
type mla struct {
	op     *attention.Decoder
	width  int  // of rows of entries; 0: the layer attends none
	splits int  // parts of a row
	turns  bool // its output can be turned back on the way
	norms  bool // its queries can be normed and turned on the way

	q, o    tensor.Tensor // [T, H, 512] bf16
	scratch tensor.Tensor
}

func (x *mla) build(k *Kind) (err error) {
	c, t, window := &k.cfg.Caches, k.cfg.Tokens, k.cfg.Model.Window
	cfg := attention.DecoderConfig{Heads: k.heads, WindowPage: c.Window.Layout.Page, Variant: k.cfg.Variant,
		MaxBytes: c.Window.Pool.Bytes(), Invariant: k.cfg.Invariant, OnDemand: true}
	if x.width > 0 {
		cfg.CompressedPage = c.Compressed.Layout.Page
		cfg.MaxBytes = max(cfg.MaxBytes, c.Compressed.Pool.Bytes())
	}
	if strings.HasPrefix(k.cfg.Variant, attention.TwoPassPrefix) {
		cfg.MaxBytes = max(cfg.MaxBytes, attention.WorkspaceBytes(t, window, x.width))
	}
	if x.op, err = attention.NewDecoder(k.dev, cfg); err != nil {
		return err
	}
	x.splits = x.op.Splits(t, window, x.width)
	x.turns, x.norms = x.op.InvertsRope(t, window, x.width), x.op.NormsQueries(t, window, x.width)
	return nil
}

func (x *mla) tensors(l *memory.List, k *Kind) {
	t := k.cfg.Tokens
	l.Add(&x.q, tensor.BF16, t, k.heads, headDim)
	l.Add(&x.o, tensor.BF16, t, k.heads, headDim)
	if x.op != nil {
		l.Add(&x.scratch, tensor.U8, int(x.op.ScratchBytes(t, k.cfg.Model.Window, x.width)))
	}
}

// prepare asks for the kernels that record launches.
func (x *mla) prepare(k *Kind, joined bool) error {
	t, window := k.cfg.Tokens, k.cfg.Model.Window
	if joined {
		return x.op.PrepareParts(t, window, x.width)
	}
	return x.op.Prepare(t, window, x.width)
}

// record records the attention. With joined its parts are left to somebody else to join.
func (x *mla) record(rec *vk.Recorder, a attention.DecodeArgs, joined bool) (attention.Parts, error) {
	a.Q, a.Out, a.Scratch = x.q, x.o, x.scratch.View()
	if joined {
		return x.op.RecordParts(rec, a)
	}
	return attention.Parts{}, x.op.Record(rec, a)
}
