package pipeline

import (
	"errors"
	"fmt"

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

// DecodeConfig says what a Decode is built for. T is the number of tokens of a
// step, padding included; H the number of query heads.
type DecodeConfig struct {
	Tokens  int    // T, at least 1
	Heads   int    // H, 1 to attention.MaxHeads
	Ratio   int    // RatioWindow, RatioC4A or RatioC128A
	Window  int    // rows of the sliding window, the token's own included; 0 means 128
	TopK    int    // RatioC4A: width of the indexer's rows (512 or 1024)
	MaxLen  int    // RatioC128A: longest sequence in tokens
	Variant string // of the attention kernel, one of attention.DecodeVariants; "" picks the best

	WindowCache     cache.KVCache // the layer's window cache, or one of its layout and size
	CompressedCache cache.KVCache // likewise; unused with RatioWindow
}

// Decode is the attention of one kind of layer for a step of T decode tokens.
// Layers with equal configurations share one Decode: its memory holds what is
// computed once for a step, and scratch that a layer leaves behind.
type Decode struct {
	cfg   DecodeConfig
	arena *tensor.Arena

	slotMapping *cache.SlotMapping
	insert      *cache.Insert
	window      *attention.WindowIndices
	picks       *attention.GlobalTopK
	all         *attention.C128Indices
	attend      *attention.Decoder

	slots                 tensor.Tensor // [T] i64, where the step's rows are stored
	winIndices, winLens   tensor.Tensor
	compIndices, compLens tensor.Tensor
	scratch               tensor.Tensor
}

// StepArgs are the inputs that all layers of a step share, for R requests.
// Padding tokens lie beyond QueryStart[R] and have IsValid 0.
type StepArgs struct {
	QueryStart      tensor.Tensor // [R+1] i32: first token of each request, then their number
	SeqLens         tensor.Tensor // [R] i32: tokens of each request, this step's included
	TokenToReq      tensor.Tensor // [T] i32
	Positions       tensor.Tensor // [T] i32, RatioC128A only
	IsValid         tensor.Tensor // [T] u8
	WindowTable     tensor.Tensor // [R, W] i32 pages of the window cache, -1 for recycled ones
	CompressedTable tensor.Tensor // [R, W] i32 pages of the compressed cache; absent with RatioWindow
}

// LayerArgs are the inputs and outputs of one layer.
type LayerArgs struct {
	Q          tensor.Tensor // [T, H, 512] bf16, normed and rotated
	KV         tensor.Tensor // [T, 512] bf16, normed and rotated: the step's new rows
	TopK       tensor.Tensor // [T, TopK] i32, the indexer's picks, front-packed; RatioC4A only
	Sink       tensor.Tensor // [H] f32, or absent
	Window     cache.KVCache // the new rows are inserted here
	Compressed cache.KVCache // unused with RatioWindow
	Out        tensor.Tensor // [T, H, 512] bf16, written
	LSE        tensor.Tensor // [T, H] f32, written; may be absent
}

// NewDecode builds the kernels and allocates what a step needs. The caller closes
// it.
//
// Errors: vk.ErrArgument; vk.ErrMissingFeature for a forced variant; those of
// memory and kernels.
func NewDecode(dev *vk.Device, cfg DecodeConfig) (*Decode, error) {
	if cfg.Window == 0 {
		cfg.Window = 128
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	d := &Decode{cfg: cfg}
	if err := d.build(dev); err != nil {
		return nil, fmt.Errorf("pipeline: new decode: %w", err)
	}
	if err := d.allocate(dev); err != nil {
		d.Close()
		return nil, fmt.Errorf("pipeline: new decode: %w", err)
	}
	return d, nil
}

func (cfg DecodeConfig) check() error {
	bad := func(arg string, got any, want string) error {
		return &vk.ArgumentError{Op: "pipeline: new decode", Arg: arg, Got: fmt.Sprint(got), Want: want}
	}
	switch {
	case cfg.Tokens < 1:
		return bad("Tokens", cfg.Tokens, "at least 1")
	case cfg.Heads < 1 || cfg.Heads > attention.MaxHeads:
		return bad("Heads", cfg.Heads, fmt.Sprintf("1 to %d", attention.MaxHeads))
	case cfg.Window < 1:
		return bad("Window", cfg.Window, "at least 1")
	case cfg.Ratio != RatioWindow && cfg.Ratio != RatioC4A && cfg.Ratio != RatioC128A:
		return bad("Ratio", cfg.Ratio, "1, 4 or 128")
	case cfg.Ratio == RatioC4A && cfg.TopK < 1:
		return bad("TopK", cfg.TopK, "at least 1 for a C4A layer")
	case cfg.Ratio == RatioC128A && cfg.MaxLen < 1:
		return bad("MaxLen", cfg.MaxLen, "at least 1 for a C128A layer")
	}
	return nil
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

func (d *Decode) build(dev *vk.Device) (err error) {
	cfg := d.cfg
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
	d.attend, err = attention.NewDecoder(dev, ac)
	return err
}

func (d *Decode) allocate(dev *vk.Device) (err error) {
	t, w, cw := d.cfg.Tokens, d.cfg.Window, d.cfg.compWidth()
	scratch := int(d.attend.ScratchBytes(t, w, cw))
	type want struct {
		to    *tensor.Tensor
		dt    tensor.DType
		shape []int
	}
	list := []want{
		{&d.slots, tensor.I64, []int{t}},
		{&d.winIndices, tensor.I32, []int{t, w}}, {&d.winLens, tensor.I32, []int{t}},
		{&d.scratch, tensor.U8, []int{scratch}},
	}
	if cw > 0 {
		list = append(list, want{&d.compIndices, tensor.I32, []int{t, cw}}, want{&d.compLens, tensor.I32, []int{t}})
	}
	var size uint64
	for _, x := range list {
		size += tensor.Need(x.dt, x.shape...)
	}
	if d.arena, err = tensor.NewArena(dev, vk.DeviceLocal, "decode step", size); err != nil {
		return err
	}
	for _, x := range list {
		if *x.to, err = d.arena.Alloc(x.dt, x.shape...); err != nil {
			return err
		}
	}
	return nil
}

// Variant returns the variant of the attention kernel in use.
func (d *Decode) Variant() string { return d.attend.Variant() }

// Close frees the step's memory. Commands recorded with it keep working until
// they are closed.
func (d *Decode) Close() error {
	if d.arena == nil {
		return nil
	}
	return d.arena.Close()
}

// Indices returns the index lists that the attention kernel reads: window slots
// [T, Window] i32 and their lengths [T] i32, compressed slots and lengths (zero
// tensors with RatioWindow). They are valid after RecordStep and RecordLayer ran.
func (d *Decode) Indices() (window, windowLens, compressed, compressedLens tensor.Tensor) {
	return d.winIndices, d.winLens, d.compIndices, d.compLens
}

// RecordStep records what is computed once for all layers: where the new rows are
// stored, and the slots of each token's window (and, with RatioC128A, of its
// compressed entries).
//
// Errors: vk.ErrArgument; those of vk.Recorder.Dispatch.
func (d *Decode) RecordStep(rec *vk.Recorder, a StepArgs) error {
	err := d.slotMapping.Record(rec, cache.SlotMappingArgs{QueryStart: a.QueryStart, SeqLens: a.SeqLens, Table: a.WindowTable, Slots: d.slots})
	if err != nil {
		return fmt.Errorf("pipeline: decode step: %w", err)
	}
	err = d.window.Record(rec, attention.WindowIndicesArgs{
		QueryStart: a.QueryStart, SeqLens: a.SeqLens, TokenToReq: a.TokenToReq, IsValid: a.IsValid,
		BlockTable: a.WindowTable, Slots: d.winIndices, Lens: d.winLens,
	})
	if err == nil && d.all != nil {
		err = d.all.Record(rec, attention.C128IndicesArgs{
			Positions: a.Positions, SlotMapping: d.slots, TokenToReq: a.TokenToReq, BlockTable: a.CompressedTable,
			Indices: d.compIndices, Lens: d.compLens,
		})
	}
	if err != nil {
		return fmt.Errorf("pipeline: decode step: %w", err)
	}
	return nil
}

// RecordLayer records one layer: insert the new KV rows, turn the picks into
// slots (RatioC4A), attend.
//
// Errors: vk.ErrArgument; those of vk.Recorder.Dispatch.
func (d *Decode) RecordLayer(rec *vk.Recorder, s StepArgs, a LayerArgs) error {
	return errors.Join(d.RecordInsert(rec, a), d.RecordPicks(rec, s, a), d.RecordAttend(rec, a))
}

// RecordInsert records the first part of RecordLayer, for callers that time or
// interleave the parts.
func (d *Decode) RecordInsert(rec *vk.Recorder, a LayerArgs) error {
	if err := d.insert.Record(rec, cache.InsertArgs{K: a.KV, Slots: d.slots, Cache: a.Window}); err != nil {
		return fmt.Errorf("pipeline: decode layer: %w", err)
	}
	return nil
}

// RecordPicks records the second part of RecordLayer; it does nothing but for
// RatioC4A.
func (d *Decode) RecordPicks(rec *vk.Recorder, s StepArgs, a LayerArgs) error {
	if d.picks == nil {
		return nil
	}
	err := d.picks.Record(rec, attention.GlobalTopKArgs{
		TopK: a.TopK, TokenToReq: s.TokenToReq, BlockTable: s.CompressedTable, IsValid: s.IsValid,
		Slots: d.compIndices, Lens: d.compLens,
	})
	if err != nil {
		return fmt.Errorf("pipeline: decode layer: %w", err)
	}
	return nil
}

// RecordAttend records the last part of RecordLayer.
func (d *Decode) RecordAttend(rec *vk.Recorder, a LayerArgs) error {
	args := attention.DecodeArgs{
		Q: a.Q, Window: attention.SlotSet{Cache: a.Window, Indices: d.winIndices, Lens: d.winLens},
		Sink: a.Sink, Out: a.Out, LSE: a.LSE, Scratch: d.scratch.View(),
	}
	if d.cfg.Ratio != RatioWindow {
		args.Compressed = attention.SlotSet{Cache: a.Compressed, Indices: d.compIndices, Lens: d.compLens}
	}
	if err := d.attend.Record(rec, args); err != nil {
		return fmt.Errorf("pipeline: decode layer: %w", err)
	}
	return nil
}
