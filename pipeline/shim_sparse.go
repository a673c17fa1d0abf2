package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opNewSparse   = "pipeline: new sparse"
	opSparseStep  = "pipeline: sparse step"
	opSparseLayer = "pipeline: sparse layer"
)

// SparseConfig says what a Sparse is built for. Of the caches only the layouts and
// the sizes of the pools count, as in DecodeConfig.
type SparseConfig struct {
	DecodeConfig // of the attention; TopK is how many entries the indexer picks, at most indexer.MaxK

	State cache.StateCache // of the compressor of K entries; not with RatioWindow
	Eps   float32          // added to the mean square of an entry; 0 means cache.CompressEps

	// RatioC4A only.
	IndexState cache.StateCache    // of the compressor of indexer keys
	Keys       cache.IndexKeyCache // its layout's format is that of the queries, too
	IndexHeads int                 // Hi, 1 to indexer.MaxHeads
	Hadamard   bool                // mix indexer queries and keys before they are quantised
	Entries    int                 // most entries that a request has, more are not scored; 0: what KeysTable holds
	Group      int                 // how many consecutive tokens usually belong to one request: 0 or 1 for decode, more for prefill; results do not depend on it
}

// SparseStepArgs are the inputs that all layers of a step share. Positions is needed
// with every ratio but RatioWindow. SeqLens, QueryStart and Positions have to agree:
// the i-th of n tokens of request r has position SeqLens[r] - n + i.
type SparseStepArgs struct {
	StepArgs
	StateTable      tensor.Tensor // [R, W] i32: pages of the compressor's states, an entry for page tokens; not with RatioWindow
	IndexStateTable tensor.Tensor // [R, W] i32: likewise for the indexer's compressor; RatioC4A only
	KeysTable       tensor.Tensor // [R, W] i32: pages of indexer keys, an entry for page*4 tokens; RatioC4A only
}

// CompressorArgs are the inputs of one compressor, for C = Compression.Channels().
type CompressorArgs struct {
	KvScore tensor.Tensor    // [T, 2*C] f32: the projection's kv values, then its gate scores
	Ape     tensor.Tensor    // [Ratio, C] f32: positional term of the scores
	Norm    tensor.Tensor    // [Dim] f32 or bf16: weight of the RMS norm
	State   cache.StateCache // the step's states are saved here
}

// IndexArgs are the inputs of a C4A layer's indexer.
type IndexArgs struct {
	CompressorArgs
	Keys    cache.IndexKeyCache // the step's keys are inserted here
	Q       tensor.Tensor       // [T, Hi, 128] bf16, neither normed nor rotated
	Weights tensor.Tensor       // [T, Hi] bf16
}

// SparseLayerArgs are the inputs and outputs of one layer. TopK is absent: the
// indexer picks. Outputs must not overlap inputs or each other.
type SparseLayerArgs struct {
	LayerArgs
	CosSin     tensor.Tensor  // [rows, 64] f32: cosines, then sines of a position; not with RatioWindow
	Compressor CompressorArgs // not with RatioWindow
	Index      IndexArgs      // RatioC4A only
}

// Sparse is what lies between the projections of a layer, for a step of T tokens:
// the new KV rows and compressor states are stored, completed groups of tokens
// become compressed entries and indexer keys, the indexer scores the entries that
// each token may see and picks the best, and every head attends to its window and
// the picks (C4A), to its window and all entries (C128A), or to its window alone.
//
// Tokens of a step may be of any number of requests, and a request may have any
// number of consecutive tokens in it, so that the same commands serve decode,
// speculative decode and prefill in chunks: an entry that a token of the step
// completes is visible to it and to later ones, and how a sequence is divided into
// steps changes neither the caches nor what is picked from equal scores.
//
// Like a Decode it is made once for a number of tokens, shared by layers of equal
// configuration, recorded once and submitted for every step. The zero value is of no use.
type Sparse struct {
	cfg    SparseConfig
	dev    *vk.Device
	decode *Decode
	arena  *tensor.Arena // nil once closed, or with RatioWindow

	main  *compressor // not with RatioWindow
	keys  *compressor // RatioC4A, as all below
	seen  *indexer.Visible
	query *indexer.QueryQuant // nil where pick quantises queries itself
	pick  *indexer.Select
	touch *cache.Touch

	lens, topk             tensor.Tensor // [T] i32, [T, TopK] i32
	sink                   tensor.Tensor // [1] u32, of touch
	arrived                tensor.Tensor // [T] i32, 0 between selections
	codes, scales, weights tensor.Tensor // of the indexer's queries
	scratch                tensor.Tensor
}

// compressor is one of a layer's compressors and where its step's rows go.
type compressor struct {
	ratio           int
	stateMap        *cache.SlotMapping
	entryMap        *cache.SlotMapping
	save            *cache.SaveState // nil where compress saves states itself
	compress        *cache.Compress
	states, entries tensor.Tensor // [T] i64 slots
}

// NewSparse builds the kernels and allocates what a step needs: that of NewDecode,
// and with RatioC4A the quantised queries and indexer.Select's scratch, which does not grow with the context. It is counted under the labels "decode step" and
// "sparse step". The caller closes it.
//
// Errors: those of NewDecode and of the constructors in packages cache and indexer.
func NewSparse(dev *vk.Device, cfg SparseConfig) (*Sparse, error) {
	decode, err := NewDecode(dev, cfg.DecodeConfig)
	if err != nil {
		return nil, err
	}
	s := &Sparse{cfg: cfg, dev: dev, decode: decode}
	err = s.build()
	if err == nil {
		err = s.allocate()
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", opNewSparse, err)
	}
	return s, nil
}

func (s *Sparse) build() (err error) {
	cfg, saves := s.cfg, s.cfg.Tokens <= normTokens
	switch cfg.Ratio {
	case RatioC4A:
		s.main, err = newCompressor(s.dev, cfg.State, cache.CompressConfig{Save: saves, Compression: cache.C4Main,
			Page: cfg.CompressedCache.Layout.Page, Eps: cfg.Eps, MaxBytes: max(cfg.State.Pool.Bytes(), cfg.CompressedCache.Pool.Bytes())})
	case RatioC128A:
		s.main, err = newCompressor(s.dev, cfg.State, cache.CompressConfig{Save: saves, Compression: cache.C128Main,
			Page: cfg.CompressedCache.Layout.Page, Eps: cfg.Eps, MaxBytes: max(cfg.State.Pool.Bytes(), cfg.CompressedCache.Pool.Bytes())})
	}
	if err != nil || cfg.Ratio != RatioC4A {
		return err
	}
	keys := cfg.Keys.Layout
	if s.keys, err = newCompressor(s.dev, cfg.IndexState, cache.CompressConfig{Save: saves, Compression: cache.C4Index, Keys: keys.Format, Hadamard: cfg.Hadamard,
		Page: keys.Page, Eps: cfg.Eps, MaxBytes: max(cfg.IndexState.Pool.Bytes(), cfg.Keys.Pool.Bytes())}); err != nil {
		return err
	}
	if s.seen, err = indexer.NewVisible(s.dev, indexer.VisibleConfig{Ratio: s.main.ratio}); err != nil {
		return err
	}
	pick := indexer.SelectConfig{K: cfg.TopK, SlotPage: cfg.CompressedCache.Layout.Page, Logits: indexer.LogitsConfig{
		Heads: cfg.IndexHeads, Format: keys.Format, Page: keys.Page, Group: cfg.Group, MaxBytes: cfg.Keys.Pool.Bytes()}}
	if rawQueries(cfg.Tokens, cfg.Hadamard) {
		pick.Logits.Raw = true
		if s.pick, err = indexer.NewSelect(s.dev, pick); !errors.Is(err, vk.ErrMissingFeature) {
			return err
		}
		pick.Logits.Raw = false
	}
	if s.query, err = indexer.NewQueryQuant(s.dev, indexer.QueryQuantConfig{Format: keys.Format, Hadamard: cfg.Hadamard}); err != nil {
		return err
	}
	s.pick, err = indexer.NewSelect(s.dev, pick)
	return err
}

// rawTokens is the most tokens of a step for which the kernel of the scores quantises the
// indexer's queries, where it can. On an H100 the step of one token gains 3.6 %, those of 2,
// 8 and 32 1.3 to 1.7 %.
const rawTokens = 32

// rawQueries is the rule: no kernel of scores mixes queries.
func rawQueries(tokens int, hadamard bool) bool { return tokens <= rawTokens && !hadamard }

func newCompressor(dev *vk.Device, state cache.StateCache, cfg cache.CompressConfig) (*compressor, error) {
	c := &compressor{ratio: cfg.Compression.Ratio}
	cfg.StatePage = state.Layout.Page
	var err error
	if c.stateMap, err = cache.NewSlotMapping(dev, cache.SlotMappingConfig{Page: cfg.StatePage, Ratio: 1}); err != nil {
		return nil, err
	}
	if c.entryMap, err = cache.NewSlotMapping(dev, cache.SlotMappingConfig{Page: cfg.Page, Ratio: c.ratio}); err != nil {
		return nil, err
	}
	if !cfg.Save {
		if c.save, err = cache.NewSaveState(dev, cache.SaveStateConfig{Compression: cfg.Compression, Page: cfg.StatePage, MaxBytes: state.Pool.Bytes()}); err != nil {
			return nil, err
		}
	}
	c.compress, err = cache.NewCompress(dev, cfg)
	return c, err
}

func (s *Sparse) allocate() (err error) {
	if s.main == nil {
		return nil
	}
	t, h := s.cfg.Tokens, s.cfg.IndexHeads
	list := []wanted{{&s.main.states, tensor.I64, []int{t}}, {&s.main.entries, tensor.I64, []int{t}}}
	if s.keys != nil {
		row := s.cfg.Keys.Layout.Format.RowBytes()
		list = append(list,
			wanted{&s.keys.states, tensor.I64, []int{t}}, wanted{&s.keys.entries, tensor.I64, []int{t}},
			wanted{&s.lens, tensor.I32, []int{t}}, wanted{&s.sink, tensor.U32, []int{1}}, wanted{&s.arrived, tensor.I32, []int{t}}, wanted{&s.topk, tensor.I32, []int{t, s.cfg.TopK}},
			wanted{&s.scratch, tensor.U8, []int{int(s.pick.ScratchBytes(t))}})
		if s.query != nil {
			list = append(list, wanted{&s.codes, tensor.U8, []int{t, h, row}}, wanted{&s.weights, tensor.F32, []int{t, h}})
		}
		if s.query != nil && s.cfg.Keys.Layout.Format == cache.IndexKeyMXFP4 {
			list = append(list, wanted{&s.scales, tensor.U8, []int{t, h, cache.IndexScaleBytes}})
		}
	}
	if s.arena, err = allocate(s.dev, "sparse step", list); err != nil || s.arrived.IsZero() {
		return err
	}
	if s.keys != nil {
		if s.touch, err = cache.NewTouch(s.dev); err != nil {
			return err
		}
	}
	return s.arrived.Upload(context.Background(), make([]byte, s.arrived.Bytes()))
}

// Variants returns the variants in use of the attention and, with RatioC4A, of the
// indexer's scores.
func (s *Sparse) Variants() (attention, scores string) {
	if s.pick != nil {
		scores = s.pick.Variant()
	}
	return s.decode.Variant(), scores
}

// TopK returns the picks [T, TopK] i32 of the C4A layer that ran last: entries of
// the token's request in ascending order, then -1. It is a zero tensor with other
// ratios.
func (s *Sparse) TopK() tensor.Tensor { return s.topk }

// Close frees the step's memory; closing again does nothing. Commands recorded
// before keep working until they are closed, recording anything more gives
// vk.ErrClosed.
func (s *Sparse) Close() error {
	if s == nil {
		return nil
	}
	err := s.decode.Close()
	if s.arena != nil {
		if e := s.arena.Close(); err == nil {
			err = e
		}
		s.arena = nil
	}
	return err
}

// RecordStep records what is computed once for all layers: Decode.RecordStep, where
// the states and entries of both compressors are stored (cache.SlotMapping), and how
// many entries each token may see (indexer.Visible).
//
// Errors: vk.ErrArgument, vk.ErrClosed, with nothing recorded.
func (s *Sparse) RecordStep(rec *vk.Recorder, a SparseStepArgs) error {
	return s.record(opSparseStep, rec, func(rec *vk.Recorder) error {
		rec.Section("step")
		// Decode comes last: with RatioC128A its last list waits for its slots.
		return inOrder(func() error { return s.recordSlots(rec, a) }, func() error { return s.decode.RecordStep(rec, a.StepArgs) })
	})
}

// recordSlots records RecordStep without that of Decode.
func (s *Sparse) recordSlots(rec *vk.Recorder, a SparseStepArgs) error {
	if s.main == nil {
		return nil
	}
	if err := s.main.recordSlots(rec, a, a.StateTable, a.CompressedTable); err != nil || s.keys == nil {
		return err
	}
	if err := s.keys.recordSlots(rec, a, a.IndexStateTable, a.KeysTable); err != nil {
		return err
	}
	return s.seen.Record(rec, indexer.VisibleArgs{Positions: a.Positions, IsValid: a.IsValid, Lens: s.lens})
}

func (c *compressor) recordSlots(rec *vk.Recorder, a SparseStepArgs, states, entries tensor.Tensor) error {
	err := c.stateMap.Record(rec, cache.SlotMappingArgs{QueryStart: a.QueryStart, SeqLens: a.SeqLens, Table: states, Slots: c.states})
	if err == nil {
		err = c.entryMap.Record(rec, cache.SlotMappingArgs{QueryStart: a.QueryStart, SeqLens: a.SeqLens, Table: entries, Slots: c.entries})
	}
	return err
}

// RecordLayer records one layer, after RecordStep in the same or an earlier
// submission: cache.Insert, cache.SaveState and indexer.QueryQuant, which do not
// depend on each other; cache.Compress; indexer.Select, which also says
// where the picks are; attention.Decoder. All states of the step are stored before any is
// pooled; of few tokens cache.Compress stores them itself, and of up to 32 indexer.Select
// quantises the queries where it can.
//
// Errors: vk.ErrArgument, vk.ErrClosed, with nothing recorded.
func (s *Sparse) RecordLayer(rec *vk.Recorder, step SparseStepArgs, a SparseLayerArgs) error {
	if !a.TopK.IsZero() {
		return &vk.ArgumentError{Op: opSparseLayer, Arg: "TopK", Got: a.TopK.String(), Want: "none: the indexer picks"}
	}
	return s.record(opSparseLayer, rec, func(rec *vk.Recorder) error {
		if err := s.decode.RecordInsert(rec, a.LayerArgs); err != nil {
			return err
		}
		return s.recordInserted(rec, step, a)
	})
}

// recordInserted records the rest of a layer whose KV rows somebody else stores, where
// s.decode.slots says. Part of it may be recorded when an error comes.
func (s *Sparse) recordInserted(rec *vk.Recorder, step SparseStepArgs, a SparseLayerArgs) error {
	for _, part := range []func(*vk.Recorder, SparseStepArgs, SparseLayerArgs) error{
		s.recordSave, s.recordKeySave, s.recordQuery, s.recordCompress, s.recordKeyCompress} {
		if err := part(rec, step, a); err != nil {
			return err
		}
	}
	if err := s.recordPick(rec, step, a.Index, a.CosSin, nil); err != nil {
		return err
	}
	if err := s.recordTouch(rec, a.Compressed.Pool); err != nil {
		return err
	}
	return s.recordAttention(rec, a, attention.InverseRope{}, attention.QueryNorm{})
}

// recordSave records how the compressor's states are stored. It does nothing, as the
// other parts of a layer below, where the ratio has no such part.
func (s *Sparse) recordSave(rec *vk.Recorder, step SparseStepArgs, a SparseLayerArgs) error {
	if s.main == nil || s.main.save == nil {
		return nil
	}
	rec.Section("compressor.save")
	return s.main.recordSave(rec, step, a.Compressor)
}

// recordCompress records what makes compressed entries, of states that are stored.
func (s *Sparse) recordCompress(rec *vk.Recorder, step SparseStepArgs, a SparseLayerArgs) error {
	if s.main == nil {
		return nil
	}
	rec.Section("compressor.compress")
	out := cache.CompressArgs{StateTable: step.StateTable, CosSin: a.CosSin, Cache: a.Compressed}
	return s.main.recordCompress(rec, step, a.Compressor, out)
}

// recordKeySave is recordSave for the indexer's compressor.
func (s *Sparse) recordKeySave(rec *vk.Recorder, step SparseStepArgs, a SparseLayerArgs) error {
	if s.keys == nil || s.keys.save == nil {
		return nil
	}
	rec.Section("indexer.compressor.save")
	return s.keys.recordSave(rec, step, a.Index.CompressorArgs)
}

// recordKeyCompress records what makes indexer keys, of states that are stored.
func (s *Sparse) recordKeyCompress(rec *vk.Recorder, step SparseStepArgs, a SparseLayerArgs) error {
	if s.keys == nil {
		return nil
	}
	rec.Section("indexer.compressor.compress")
	return s.keys.recordCompress(rec, step, a.Index.CompressorArgs, cache.CompressArgs{StateTable: step.IndexStateTable, CosSin: a.CosSin, Keys: a.Index.Keys})
}

// quantisesLate tells whether the kernel of the scores quantises the indexer's queries.
func (s *Sparse) quantisesLate() bool { return s.pick != nil && s.query == nil }

// recordQuery records how the indexer's queries are quantised, unless their scores do it.
func (s *Sparse) recordQuery(rec *vk.Recorder, step SparseStepArgs, a SparseLayerArgs) error {
	if s.query == nil {
		return nil
	}
	rec.Section("indexer.q_quantise")
	return s.query.Record(rec, indexer.QueryQuantArgs{Q: a.Index.Q, Positions: step.Positions, Weights: a.Index.Weights, Table: a.CosSin,
		Codes: s.codes, Scales: s.scales, WeightsOut: s.weights})
}

// recordAttention records the attention, to what the indexer picked.
func (s *Sparse) recordAttention(rec *vk.Recorder, a SparseLayerArgs, turn attention.InverseRope, norm attention.QueryNorm) error {
	rec.Section("attention")
	return s.decode.attendTo(rec, a.LayerArgs, turn, norm)
}

// recordParts is recordAttention, the joining of parts left out.
func (s *Sparse) recordParts(rec *vk.Recorder, a SparseLayerArgs, norm attention.QueryNorm) (attention.Parts, error) {
	rec.Section("attention")
	return s.decode.attendInParts(rec, a.LayerArgs, norm)
}

func (c *compressor) recordSave(rec *vk.Recorder, step SparseStepArgs, a CompressorArgs) error {
	return c.save.Record(rec, cache.SaveStateArgs{KvScore: a.KvScore, Ape: a.Ape, Positions: step.Positions, Slots: c.states, State: a.State})
}

// recordCompress fills in what out, which says where entries go, has in common for
// all compressors.
func (c *compressor) recordCompress(rec *vk.Recorder, step SparseStepArgs, a CompressorArgs, out cache.CompressArgs) error {
	out.Positions, out.TokenToReq, out.StateSlots, out.Slots = step.Positions, step.TokenToReq, c.states, c.entries
	out.State, out.Norm = a.State, a.Norm
	if c.save == nil {
		out.KvScore, out.Ape = a.KvScore, a.Ape
	}
	return c.compress.Record(rec, out)
}

// recordPick records the selection, and with its scores what beside, unless nil,
// records.
func (s *Sparse) recordPick(rec *vk.Recorder, step SparseStepArgs, a IndexArgs, cosSin tensor.Tensor, beside func() error) error {
	if s.pick == nil {
		return nil
	}
	const section = "indexer.select"
	if also := beside; also != nil {
		beside = func() error {
			defer rec.Section(section)
			return also()
		}
	}
	scores := indexer.LogitsArgs{Q: s.codes, QScale: s.scales, Weights: s.weights, Keys: a.Keys,
		BlockTable: step.KeysTable, TokenToReq: step.TokenToReq, Lens: s.lens}
	if s.quantisesLate() {
		scores.Raw = indexer.RawQueries{Q: a.Q, Positions: step.Positions, Weights: a.Weights, Table: cosSin}
	}
	rec.Section(section)
	return s.pick.Record(rec, indexer.SelectArgs{
		LogitsArgs: scores,
		TopK:       s.topk, Entries: s.cfg.Entries, Scratch: s.scratch.View(), Arrived: s.arrived, Beside: beside,
		Slots: indexer.PickSlots{BlockTable: step.CompressedTable, Slots: s.decode.compIndices, Lens: s.decode.compLens},
	})
}

// Pools of entries whose addresses are translated beside the selection. On an H100 a step
// of 32 tokens, with pools of 612 MiB in 21 layers, takes 2 % less; one of a single token,
// with pools of 20 MiB, 0.5 % more. What is more than touchMost takes too long to touch.
const touchLeast, touchMost = 256 << 20, 2 << 30

// touches tells whether recordTouch does anything.
func (s *Sparse) touches(pool tensor.Tensor) bool {
	n := pool.Bytes()
	return s.touch != nil && n >= touchLeast && n <= min(touchMost, s.dev.Caps().MaxStorageBufferRange)
}

// recordTouch records what runs beside the end of the selection, so that the attention
// finds its rows sooner.
func (s *Sparse) recordTouch(rec *vk.Recorder, pool tensor.Tensor) error {
	if !s.touches(pool) {
		return nil
	}
	return s.touch.Record(rec, pool, s.sink)
}

// record records into rec what went well in a rehearsal, unless s is closed.
func (s *Sparse) record(op string, rec *vk.Recorder, all func(*vk.Recorder) error) error {
	if s == nil || s.decode == nil || s.decode.arena == nil {
		return fmt.Errorf("%s: sparse %w", op, vk.ErrClosed)
	}
	return rehearse(s.dev, op, rec, all)
}

// rehearse records into rec what went well in a rehearsal: every operation checks its
// arguments, but only when its turn comes, and what was recorded by then could not
// be taken back.
func rehearse(dev *vk.Device, op string, rec *vk.Recorder, all func(*vk.Recorder) error) error {
	if rec == nil {
		return &vk.ArgumentError{Op: op, Arg: "rec", Got: "nil", Want: "a recorder"}
	}
	trial, err := dev.NewRecorder()
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	err = all(trial)
	trial.Close()
	if err == nil {
		err = all(rec)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}
