package pipeline

import (
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Compression ratios of DeepSeek-V4's layers: tokens for each compressed entry.
const (
	RatioWindow = 1   // no compressed cache: the sliding window only
	RatioC4A    = 4   // the indexer's picks of the compressed entries
	RatioC128A  = 128 // all compressed entries
)

// channels is how many values of a compressor a token has.
func channels(ratio, dim int) int {
	return cache.Compression{Dim: dim, Ratio: ratio, Overlap: ratio == RatioC4A}.Channels()
}

// DecodeConfig says what a Decode is built for. Of the caches only the layouts and
// the sizes of the pools count: they say which builds of the kernels can reach the
// memory. A cache without a pool stands for any that one descriptor can hold
// (vk.Caps.MaxStorageBufferRange).
type DecodeConfig struct {
	Tokens  int    // T, padding included, at least 1
	Heads   int    // H, 1 to attention.MaxHeads
	Ratio   int    // RatioWindow, RatioC4A or RatioC128A
	Window  int    // rows of the sliding window, the token's own included; 0 means 128
	TopK    int    // RatioC4A: width of the indexer's rows (512 or 1024)
	MaxLen  int    // RatioC128A: longest sequence in tokens; entries beyond are not attended
	Variant string // of the attention kernel, one of attention.DecodeVariants; "" picks the best

	WindowCache     cache.KVCache // the layer's window cache, or one like the largest of several
	CompressedCache cache.KVCache // likewise; unused with RatioWindow
}

// Decode is the attention of one kind of layer for a step of T decode tokens.
// Layers with equal configurations share one Decode: its memory holds what is
// computed once for a step, and scratch that a layer leaves behind. Layers of other
// ratios need one of their own, and may share the StepArgs.
//
// Several goroutines may record with one Decode, and what they recorded may be
// submitted without waiting for each other: the device runs submissions one after
// the other. Close must not run at the same time as a recording.
type Decode struct {
	dev      *vk.Device
	cfg      DecodeConfig
	arena    *tensor.Arena // nil once closed
	variant  string
	maxBytes uint64

	slotMapping *cache.SlotMapping
	insert      *cache.Insert
	window      *attention.WindowIndices
	picks       *attention.GlobalTopK  // RatioC4A
	all         *attention.C128Indices // RatioC128A
	attend      *attention.Decoder

	slots                 tensor.Tensor // [T] i64, where the step's rows are stored
	winIndices, winLens   tensor.Tensor
	compIndices, compLens tensor.Tensor
	scratch               tensor.Tensor
}

// StepArgs are the inputs that all layers of a step share, for R requests with
// QueryStart[R] tokens in all. The T - QueryStart[R] tokens after those are padding:
// IsValid 0, and in TokenToReq and Positions any value, such as 0.
//
// A block table has an entry for every page of a request's sequence, in the order
// of positions; -1 stands for a page that was never allocated or was recycled, of
// which nothing is read or written. A token's own position must have a page in
// WindowTable, or its row is not stored.
//
// Source: vLLM vllm/v1/attention/backends/mla/sparse_swa.py.
type StepArgs struct {
	QueryStart      tensor.Tensor // [R+1] i32: first token of each request, then their number; ascending from 0
	SeqLens         tensor.Tensor // [R] i32: tokens of each request, this step's included
	TokenToReq      tensor.Tensor // [T] i32: request of each token
	Positions       tensor.Tensor // [T] i32: position of each token in its request; RatioC128A only
	IsValid         tensor.Tensor // [T] u8: 0 for padding
	WindowTable     tensor.Tensor // [R, W] i32: pages of the window cache, an entry for page tokens
	CompressedTable tensor.Tensor // [R, W] i32: pages of the compressed cache, an entry for page*ratio tokens; not with RatioWindow
}

// LayerArgs are the inputs and outputs of one layer. Outputs must not overlap
// inputs or each other.
type LayerArgs struct {
	Q          tensor.Tensor // [T, H, 512] bf16, normed and rotated
	KV         tensor.Tensor // [T, 512] bf16, normed and rotated: the step's new rows
	TopK       tensor.Tensor // [T, TopK] i32: the indexer's picks, compressed entries of the token's request, then -1; RatioC4A only
	Sink       tensor.Tensor // [H] f32: logit that takes part in the softmax with a row of zeros, -inf for none; may be absent
	Window     cache.KVCache // the new rows are inserted here
	Compressed cache.KVCache // not with RatioWindow
	Out        tensor.Tensor // [T, H, 512] bf16, written; 0 for a token that attends nothing
	LSE        tensor.Tensor // [T, H] f32, written: natural log, without the sink, +inf for a token that attends nothing; may be absent
}

// NewDecode builds the kernels and allocates what a step needs: index lists of
// T * (window + compressed) * 4 bytes and attention.Decoder.ScratchBytes, counted
// under the label "decode step". The caller closes it.
//
// Errors: vk.ErrArgument for a value out of range, among them sizes whose queries or
// index lists exceed what one descriptor holds; vk.ErrMissingFeature for a Variant
// that the device cannot run; those of vk.Device.Kernel and vk.Device.NewBuffer.
func NewDecode(dev *vk.Device, cfg DecodeConfig) (*Decode, error) {
	if cfg.Window == 0 {
		cfg.Window = 128
	}
	if err := cfg.check(dev); err != nil {
		return nil, err
	}
	d := &Decode{dev: dev, cfg: cfg}
	if err := d.build(); err != nil {
		return nil, fmt.Errorf("%s: %w", opNew, err)
	}
	if err := d.allocate(); err != nil {
		d.Close()
		return nil, fmt.Errorf("%s: %w", opNew, err)
	}
	return d, nil
}

// compWidth is the width of the rows of compressed slots.
func (cfg DecodeConfig) compWidth() int {
	switch cfg.Ratio {
	case RatioC4A:
		return cfg.TopK
	case RatioC128A:
		return attention.C128Width(cfg.MaxLen, RatioC128A)
	}
	return 0
}

func (d *Decode) build() (err error) {
	dev, cfg := d.dev, d.cfg
	page, bytes := cfg.WindowCache.Layout.Page, cfg.WindowCache.Pool.Bytes()
	if d.slotMapping, err = cache.NewSlotMapping(dev, cache.SlotMappingConfig{Page: page, Ratio: 1}); err != nil {
		return err
	}
	if d.insert, err = cache.NewInsert(dev, cache.InsertConfig{Page: page, MaxBytes: bytes}); err != nil {
		return err
	}
	if d.window, err = attention.NewWindowIndices(dev, attention.WindowIndicesConfig{Page: page}); err != nil {
		return err
	}
	switch cfg.Ratio {
	case RatioC4A:
		d.picks, err = attention.NewGlobalTopK(dev, attention.GlobalTopKConfig{Page: cfg.CompressedCache.Layout.Page})
	case RatioC128A:
		d.all, err = attention.NewC128Indices(dev, attention.C128IndicesConfig{Page: cfg.CompressedCache.Layout.Page, Ratio: RatioC128A})
	}
	if err != nil {
		return err
	}
	ac := attention.DecoderConfig{Heads: cfg.Heads, WindowPage: page, Variant: cfg.Variant, MaxBytes: bytes}
	if cfg.Ratio != RatioWindow {
		ac.CompressedPage = cfg.CompressedCache.Layout.Page
		ac.MaxBytes = max(bytes, cfg.CompressedCache.Pool.Bytes())
	}
	if strings.HasPrefix(cfg.Variant, attention.TwoPassPrefix) {
		ac.MaxBytes = max(ac.MaxBytes, attention.WorkspaceBytes(cfg.Tokens, cfg.Window, cfg.compWidth()))
	}
	if d.attend, err = attention.NewDecoder(dev, ac); err != nil {
		return err
	}
	d.variant, d.maxBytes = d.attend.Variant(), ac.MaxBytes
	return nil
}

func (d *Decode) allocate() (err error) {
	t, w, cw := d.cfg.Tokens, d.cfg.Window, d.cfg.compWidth()
	scratch := int(d.attend.ScratchBytes(t, w, cw))
	list := []wanted{
		{&d.slots, tensor.I64, []int{t}},
		{&d.winIndices, tensor.I32, []int{t, w}}, {&d.winLens, tensor.I32, []int{t}},
		{&d.scratch, tensor.U8, []int{scratch}},
	}
	if cw > 0 {
		list = append(list, wanted{&d.compIndices, tensor.I32, []int{t, cw}}, wanted{&d.compLens, tensor.I32, []int{t}})
	}
	d.arena, err = allocate(d.dev, "decode step", list)
	return err
}

// wanted is a tensor to allocate from an arena.
type wanted struct {
	to    *tensor.Tensor
	dt    tensor.DType
	shape []int
}

// allocate makes an arena that just holds the tensors, and them. The arena is
// returned in case of an error too, if there is one to close.
func allocate(dev *vk.Device, label string, list []wanted) (*tensor.Arena, error) {
	return allocateIn(dev, vk.DeviceLocal, label, list)
}

func allocateIn(dev *vk.Device, mem vk.Memory, label string, list []wanted) (*tensor.Arena, error) {
	var size uint64
	for _, x := range list {
		size += tensor.Need(x.dt, x.shape...)
	}
	arena, err := tensor.NewArena(dev, mem, label, size)
	if err != nil {
		return nil, err
	}
	for _, x := range list {
		if *x.to, err = arena.Alloc(x.dt, x.shape...); err != nil {
			break
		}
	}
	return arena, err
}

// Variant returns the variant of the attention kernel in use.
func (d *Decode) Variant() string { return d.variant }

// Close frees the step's memory; closing again does nothing. Commands recorded
// before keep working until they are closed, recording anything more gives
// vk.ErrClosed.
func (d *Decode) Close() error {
	if d == nil || d.arena == nil {
		return nil
	}
	arena := d.arena
	d.arena = nil
	return arena.Close()
}

// Indices returns the index lists that the attention kernel reads: window slots
// [T, Window] i32, oldest first, and their lengths [T] i32; compressed slots
// [T, TopK] i32 (RatioC128A: [T, attention.C128Width(MaxLen, 128)]) and their
// lengths, zero tensors with RatioWindow. The window's, and with RatioC128A the
// compressed ones, hold a step's values once RecordStep's commands ran; with
// RatioC4A the compressed ones are those of the layer that ran last. A row beyond
// its length is undefined.
func (d *Decode) Indices() (window, windowLens, compressed, compressedLens tensor.Tensor) {
	return d.winIndices, d.winLens, d.compIndices, d.compLens
}

// RecordStep records what is computed once for all layers: where the new rows are
// stored (cache.SlotMapping), and the slots of each token's window
// (attention.WindowIndices) and, with RatioC128A, of its compressed entries
// (attention.C128Indices). Fields that the ratio does not need are ignored.
//
// Errors: vk.ErrArgument, vk.ErrClosed, with nothing recorded; those of
// vk.Recorder.Dispatch, after which the recording is to be given up.
func (d *Decode) RecordStep(rec *vk.Recorder, a StepArgs) error {
	c := d.usable(opStep, rec)
	if d.checkStep(c, a); c.err != nil {
		return c.err
	}
	err := d.slotMapping.Record(rec, cache.SlotMappingArgs{QueryStart: a.QueryStart, SeqLens: a.SeqLens, Table: a.WindowTable, Slots: d.slots})
	if err == nil {
		err = d.window.Record(rec, attention.WindowIndicesArgs{
			QueryStart: a.QueryStart, SeqLens: a.SeqLens, TokenToReq: a.TokenToReq, IsValid: a.IsValid,
			BlockTable: a.WindowTable, Slots: d.winIndices, Lens: d.winLens,
		})
	}
	if err == nil && d.all != nil {
		err = d.all.Record(rec, attention.C128IndicesArgs{
			Positions: a.Positions, SlotMapping: d.slots, TokenToReq: a.TokenToReq, BlockTable: a.CompressedTable,
			Indices: d.compIndices, Lens: d.compLens,
		})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", opStep, err)
	}
	return nil
}

// RecordLayer records one layer, after RecordStep in the same or an earlier
// submission: insert the new KV rows (cache.Insert), turn the picks into slots
// (attention.GlobalTopK, RatioC4A only), attend (attention.Decoder). Fields that the
// ratio does not need are ignored.
//
// Errors: vk.ErrArgument, vk.ErrClosed, with nothing recorded; those of
// vk.Recorder.Dispatch, after which the recording is to be given up.
func (d *Decode) RecordLayer(rec *vk.Recorder, s StepArgs, a LayerArgs) error {
	c := d.usable(opLayer, rec)
	d.checkInsert(c, a)
	d.checkPicks(c, s, a)
	if d.checkAttend(c, a); c.err != nil {
		return c.err
	}
	if err := d.recordInsert(rec, a); err != nil {
		return err
	}
	if err := d.recordPicks(rec, s, a); err != nil {
		return err
	}
	return d.recordAttend(rec, a, attention.InverseRope{}, attention.QueryNorm{})
}

// RecordInsert records the first part of RecordLayer, for callers that time or
// interleave the parts. It needs KV and Window; errors as RecordLayer.
func (d *Decode) RecordInsert(rec *vk.Recorder, a LayerArgs) error {
	c := d.usable(opLayer, rec)
	if d.checkInsert(c, a); c.err != nil {
		return c.err
	}
	return d.recordInsert(rec, a)
}

// RecordPicks records the second part of RecordLayer; it does nothing but for
// RatioC4A. It needs TopK and, of the step, TokenToReq, IsValid and
// CompressedTable; errors as RecordLayer.
func (d *Decode) RecordPicks(rec *vk.Recorder, s StepArgs, a LayerArgs) error {
	c := d.usable(opLayer, rec)
	if d.checkPicks(c, s, a); c.err != nil {
		return c.err
	}
	return d.recordPicks(rec, s, a)
}

// RecordAttend records the last part of RecordLayer. It needs the fields of a but
// KV and TopK; errors as RecordLayer.
func (d *Decode) RecordAttend(rec *vk.Recorder, a LayerArgs) error {
	return d.attendTo(rec, a, attention.InverseRope{}, attention.QueryNorm{})
}

// attendTo is RecordAttend with an output that may be turned, and queries that may have to be normed.
func (d *Decode) attendTo(rec *vk.Recorder, a LayerArgs, turn attention.InverseRope, norm attention.QueryNorm) error {
	c := d.usable(opLayer, rec)
	if d.checkAttend(c, a); c.err != nil {
		return c.err
	}
	return d.recordAttend(rec, a, turn, norm)
}

// attendInParts is attendTo, the joining of parts left out, with those.
func (d *Decode) attendInParts(rec *vk.Recorder, a LayerArgs, norm attention.QueryNorm) (attention.Parts, error) {
	c := d.usable(opLayer, rec)
	if d.checkAttend(c, a); c.err != nil {
		return attention.Parts{}, c.err
	}
	p, err := d.attend.RecordParts(rec, d.attendArgs(a, attention.InverseRope{}, norm))
	return p, layerError(err)
}

// parts is into how many parts rows are split.
func (d *Decode) parts() int { return d.attend.Splits(d.cfg.Tokens, d.cfg.Window, d.cfg.compWidth()) }

// turns reports whether the output can be turned on the way.
func (d *Decode) turns() bool {
	return d.attend.InvertsRope(d.cfg.Tokens, d.cfg.Window, d.cfg.compWidth())
}

// norms reports whether queries can be normed on the way.
func (d *Decode) norms() bool {
	return d.attend.NormsQueries(d.cfg.Tokens, d.cfg.Window, d.cfg.compWidth())
}

func (d *Decode) recordInsert(rec *vk.Recorder, a LayerArgs) error {
	return layerError(d.insert.Record(rec, cache.InsertArgs{K: a.KV, Slots: d.slots, Cache: a.Window}))
}

func (d *Decode) recordPicks(rec *vk.Recorder, s StepArgs, a LayerArgs) error {
	if d.picks == nil {
		return nil
	}
	return layerError(d.picks.Record(rec, attention.GlobalTopKArgs{
		TopK: a.TopK, TokenToReq: s.TokenToReq, BlockTable: s.CompressedTable, IsValid: s.IsValid,
		Slots: d.compIndices, Lens: d.compLens,
	}))
}

func (d *Decode) recordAttend(rec *vk.Recorder, a LayerArgs, turn attention.InverseRope, norm attention.QueryNorm) error {
	return layerError(d.attend.Record(rec, d.attendArgs(a, turn, norm)))
}

func (d *Decode) attendArgs(a LayerArgs, turn attention.InverseRope, norm attention.QueryNorm) attention.DecodeArgs {
	args := attention.DecodeArgs{
		Q: a.Q, Window: attention.SlotSet{Cache: a.Window, Indices: d.winIndices, Lens: d.winLens},
		Sink: a.Sink, Out: a.Out, LSE: a.LSE, Scratch: d.scratch.View(), InverseRope: turn, Norm: norm,
	}
	if d.cfg.Ratio != RatioWindow {
		args.Compressed = attention.SlotSet{Cache: a.Compressed, Indices: d.compIndices, Lens: d.compLens}
	}
	return args
}

func layerError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", opLayer, err)
}
