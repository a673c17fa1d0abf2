package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opNewKind    = "pipeline: new layer kind"
	opNewLayer   = "pipeline: new layer"
	opWholeLayer = "pipeline: layer"
)

// LayerKindConfig says what a LayerKind is built for. Of the caches only the layouts
// and the sizes of the pools count, as in DecodeConfig.
type LayerKindConfig struct {
	Model   model.Config // of the whole model
	Ranks   int          // how many ranks share heads and groups; 0 counts as 1
	Ratio   int          // of the layers: RatioWindow, RatioC4A or RatioC128A
	Tokens  int          // T, padding included
	MaxLen  int          // longest sequence in tokens; entries beyond are neither picked nor attended
	Caches  LayerCaches
	Variant string // of the attention kernel; "" picks the best

	// Hadamard mixes indexer queries and keys before they are quantised.
	Hadamard bool
	// Group is how many consecutive tokens usually belong to one request, as in
	// SparseConfig: 0 or 1 for decode. Results do not depend on it.
	Group int
	// Output says how attention's output goes into wo_a; 0 is OutputBF16.
	Output OutputPath
	// Out is the type of a layer's output: tensor.BF16 (or 0), or tensor.F32 for
	// partial sums of ranks that are to be rounded once.
	Out tensor.DType
}

// LayerKind is what the layers of one ratio share for steps of T tokens: kernels, and
// the memory for what passes from one operation of a layer to the next. The commands
// of its layers may be submitted one after the other without waiting; they do not run
// at the same time. Layers of other ratios, and steps of other sizes, need one of
// their own.
//
// NewLayer and Close must not run at the same time as anything else here; recording may.
// The zero value is of no use.
type LayerKind struct {
	cfg    LayerKindConfig
	dev    *vk.Device
	heads  int // of this rank, as groups
	groups int
	sparse *Sparse
	arena  *tensor.Arena // nil once closed

	norm    *projection.QKVNorm                  // nil where linear layers and insertion norm what they are given
	insert  map[tensor.DType]*projection.QInsert // by the type of the weights of the norm inside; 0: normed before
	turn    *projection.InverseRope              // OutputBF16 only
	quant   *projection.InverseRopeQuant         // the other paths only
	linears map[projection.LinearConfig]*projection.Linear
	scratch map[string]tensor.Tensor // of the linear layer of that name, for as much as was needed so far
	outworn []tensor.Tensor          // scratch that became too small; commands may use it yet
	chains  map[[2]*projection.Linear]*projection.LinearChain
	chained tensor.Tensor // state of the chains, absent as long as there are none

	qkv       tensor.Tensor // [T, QRank+512] bf16
	qr, kv    tensor.Tensor // [T, QRank], [T, 512] bf16, normed
	arrived   tensor.Tensor // [T] u32, of wq_a|wkv; 0 between layers
	q, o      tensor.Tensor // [T, H, 512] bf16
	o8, o8s   tensor.Tensor // [G, T, P*512] u8 and scales; not with OutputBF16
	z         tensor.Tensor // [T, G*ORank] bf16
	kvScore   tensor.Tensor // [T, 2*C] f32; not with RatioWindow
	iq, iw    tensor.Tensor // [T, Hi, 128], [T, Hi] bf16; RatioC4A only, as the next
	idxScores tensor.Tensor // [T, 2*256] f32
	iwWide    tensor.Tensor // [T, more than Hi] bf16, where Hi is no multiple of linearStep
}

// NewLayerKind builds what does not depend on the format of weights, and allocates
// T * (2*H*512 + G*ORank + QRank + ...) * 2 bytes under the label "layer step" (and
// T*H*512 more unless Output is OutputBF16) besides what NewSparse allocates. The caller closes it, after the layers made from it.
//
// Errors: *ConfigError (ErrConfig); vk.ErrArgument for Ranks that do not divide the
// groups or a type of outputs that there is not; those of NewSparse and of the
// constructors in package projection.
func NewLayerKind(dev *vk.Device, cfg LayerKindConfig) (*LayerKind, error) {
	if cfg.Ranks == 0 {
		cfg.Ranks = 1
	}
	if cfg.Out == 0 {
		cfg.Out = tensor.BF16
	}
	c := checker{op: opNewKind, dev: dev}
	switch {
	case dev == nil:
		c.bad("dev", "nil", "a device")
	case cfg.Out != tensor.BF16 && cfg.Out != tensor.F32:
		c.bad("Out", cfg.Out, "bf16 or f32")
	case cfg.Output < OutputBF16 || cfg.Output > OutputFP8Packed:
		c.bad("Output", cfg.Output, "bf16, fp8 or fp8-packed")
	}
	if c.err == nil {
		c.err = cfg.Model.Check()
	}
	if c.err == nil && (cfg.Ranks < 0 || cfg.Model.Groups%cfg.Ranks != 0) {
		c.bad("Ranks", cfg.Ranks, "a divisor of the %d groups", cfg.Model.Groups)
	}
	if c.err != nil {
		return nil, c.err
	}
	k := &LayerKind{cfg: cfg, dev: dev, linears: map[projection.LinearConfig]*projection.Linear{}, scratch: map[string]tensor.Tensor{},
		chains: map[[2]*projection.Linear]*projection.LinearChain{}}
	k.divide()
	err := k.build()
	if err == nil {
		err = k.allocate()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", opNewKind, err), k.Close())
	}
	return k, nil
}

// divide gives the rank its part of heads and groups.
func (k *LayerKind) divide() {
	k.heads, k.groups = k.cfg.Model.Heads/k.cfg.Ranks, k.cfg.Model.Groups/k.cfg.Ranks
}

// sparseConfig is the configuration of what attends.
func (k *LayerKind) sparseConfig() SparseConfig {
	m, caches := k.cfg.Model, k.cfg.Caches
	cfg := SparseConfig{Eps: m.Eps, State: caches.State, DecodeConfig: DecodeConfig{
		Tokens: k.cfg.Tokens, Heads: k.heads, Ratio: k.cfg.Ratio, Window: m.Window, MaxLen: k.cfg.MaxLen, Variant: k.cfg.Variant,
		WindowCache: caches.Window, CompressedCache: caches.Compressed,
	}}
	if k.cfg.Ratio == RatioC4A {
		cfg.TopK, cfg.IndexState, cfg.Keys, cfg.IndexHeads, cfg.Hadamard = m.TopK, caches.IndexState, caches.Keys, m.IndexHeads, k.cfg.Hadamard
		cfg.Group = k.cfg.Group
		if k.cfg.MaxLen > 0 {
			cfg.Entries = max(1, k.cfg.MaxLen/RatioC4A)
		}
	}
	return cfg
}

func (k *LayerKind) build() (err error) {
	if k.sparse, err = NewSparse(k.dev, k.sparseConfig()); err != nil {
		return err
	}
	queries := k.queryBytes()
	k.insert = map[tensor.DType]*projection.QInsert{}
	return k.buildOutput(queries)
}

func (k *LayerKind) queryBytes() uint64 {
	return uint64(k.cfg.Tokens) * uint64(k.heads) * model.HeadDim * 2
}

// norms returns the operation that norms the bottleneck and KV rows for layers in which
// nothing else does.
func (k *LayerKind) norms() (*projection.QKVNorm, error) {
	if k.norm == nil {
		var err error
		if k.norm, err = projection.NewQKVNorm(k.dev, projection.QKVNormConfig{Rank: k.cfg.Model.QRank, Eps: k.cfg.Model.Eps}); err != nil {
			return nil, err
		}
	}
	return k.norm, nil
}

// inserter returns the operation that norms queries and stores KV rows, after a norm with
// weights of that type; 0 for rows that are normed.
func (k *LayerKind) inserter(norm tensor.DType) (*projection.QInsert, error) {
	if op := k.insert[norm]; op != nil {
		return op, nil
	}
	window := k.cfg.Caches.Window
	op, err := projection.NewQInsert(k.dev, projection.QInsertConfig{Page: window.Layout.Page, Eps: k.cfg.Model.Eps, KVNorm: norm,
		MaxBytes: max(k.queryBytes(), window.Pool.Bytes())})
	if err == nil {
		k.insert[norm] = op
	}
	return op, err
}

// wanted lists what allocate allocates.
func (k *LayerKind) wanted() []wanted {
	t, m := k.cfg.Tokens, k.cfg.Model
	list := []wanted{
		{&k.qkv, tensor.BF16, []int{t, m.QRank + model.HeadDim}}, {&k.qr, tensor.BF16, []int{t, m.QRank}}, {&k.kv, tensor.BF16, []int{t, model.HeadDim}},
		{&k.arrived, tensor.U32, []int{t}},
		{&k.q, tensor.BF16, []int{t, k.heads, model.HeadDim}}, {&k.o, tensor.BF16, []int{t, k.heads, model.HeadDim}},
		{&k.z, tensor.BF16, []int{t, k.groups * m.ORank}},
	}
	list = append(list, k.quantised()...)
	if k.cfg.Ratio != RatioWindow {
		list = append(list, wanted{&k.kvScore, tensor.F32, []int{t, 2 * channels(k.cfg.Ratio, model.HeadDim)}})
	}
	if k.cfg.Ratio == RatioC4A {
		list = append(list, wanted{&k.idxScores, tensor.F32, []int{t, 2 * channels(k.cfg.Ratio, model.IndexDim)}},
			wanted{&k.iq, tensor.BF16, []int{t, m.IndexHeads, model.IndexDim}}, wanted{&k.iw, tensor.BF16, []int{t, m.IndexHeads}})
		if wide := linearRows(m.IndexHeads); wide != m.IndexHeads {
			list = append(list, wanted{&k.iwWide, tensor.BF16, []int{t, wide}})
		}
	}
	return list
}

func (k *LayerKind) allocate() (err error) {
	if k.arena, err = allocate(k.dev, "layer step", k.wanted()); err != nil {
		return err
	}
	return k.arrived.Upload(context.Background(), make([]byte, k.arrived.Bytes()))
}

// reset records what makes all counters as they are between layers. They may be something
// else after a launch of which only some pieces ran.
func (k *LayerKind) reset(rec *vk.Recorder) error {
	err := rec.Fill(k.arrived.View(), 0)
	if err == nil && !k.sparse.arrived.IsZero() {
		err = rec.Fill(k.sparse.arrived.View(), 0)
	}
	if err == nil && !k.chained.IsZero() {
		err = rec.Fill(k.chained.View(), math.MaxUint32) // as projection.LinearChain.NewState does
	}
	return err
}

// TopK returns the picks [T, TopK] i32 of the layer that ran last, as Sparse.TopK does.
func (k *LayerKind) TopK() tensor.Tensor { return k.sparse.TopK() }

// LayerTensors is what passes from one operation of a layer to the next, of the layer
// that ran last, for those who check or measure operations one by one. Names are those
// of Layer's formula; what the ratio or the output path does not have is absent.
type LayerTensors struct {
	QKV                          tensor.Tensor // [T, QRank+512] bf16, before the norms
	QR, KV                       tensor.Tensor // [T, QRank], [T, 512] bf16, normed; KV is absent where the insertion norms it
	Q                            tensor.Tensor // [T, H, 512] bf16, normed and turned unless QRaw
	QRaw                         bool          // the attention norms and turns Q on its way
	O                            tensor.Tensor // [T, H, 512] bf16, turned back but with an FP8 output path
	O8, O8Scales                 tensor.Tensor // of an FP8 output path, see projection.InverseRopeQuant
	Z                            tensor.Tensor // [T, G*ORank] bf16
	KVScore, IndexKVScore        tensor.Tensor // [T, 2*C] f32, inputs of the compressors
	IndexQ, IndexWeights         tensor.Tensor // [T, Hi, 128], [T, Hi] bf16
	Codes, Scales, Folded        tensor.Tensor // the indexer's queries quantised, their weights [T, Hi] f32
	Window, WindowLens           tensor.Tensor // index lists of the attention, see Decode.Indices
	Compressed, CompressedLens   tensor.Tensor
	WindowSlots, CompressedSlots tensor.Tensor // [T] i64, where the step's rows and entries go
}

// Tensors returns the memory that the kind's layers share.
func (k *LayerKind) Tensors() LayerTensors {
	s := k.sparse
	t := LayerTensors{QRaw: k.normsLate(), QKV: k.qkv, QR: k.qr, KV: k.kv, Q: k.q, O: k.o, O8: k.o8, O8Scales: k.o8s, Z: k.z, KVScore: k.kvScore, IndexKVScore: k.idxScores,
		IndexQ: k.iq, IndexWeights: k.iw, Codes: s.codes, Scales: s.scales, Folded: s.weights, WindowSlots: s.decode.slots}
	if k.norm == nil {
		t.KV = tensor.Tensor{}
	}
	if s.main != nil {
		t.CompressedSlots = s.main.entries
	}
	t.Window, t.WindowLens, t.Compressed, t.CompressedLens = s.decode.Indices()
	return t
}

// Variants are those of Sparse.Variants.
func (k *LayerKind) Variants() (attention, scores string) { return k.sparse.Variants() }

// RecordStep records what is computed once for all layers of a step: Sparse.RecordStep.
// Positions is needed with every ratio. Errors: vk.ErrArgument, vk.ErrClosed, with
// nothing recorded.
func (k *LayerKind) RecordStep(rec *vk.Recorder, a SparseStepArgs) error {
	if k == nil || k.arena == nil {
		return fmt.Errorf("%s: layer kind %w", opSparseStep, vk.ErrClosed)
	}
	return k.sparse.RecordStep(rec, a)
}

// Bytes is the memory that the kind and its layers share, scratch included.
func (k *LayerKind) Bytes() uint64 {
	if k == nil || k.arena == nil {
		return 0
	}
	n := k.arena.Whole().Size + k.sparse.decode.arena.Whole().Size
	if k.sparse.arena != nil {
		n += k.sparse.arena.Whole().Size
	}
	for _, t := range k.scratch {
		n += t.Bytes()
	}
	for _, t := range k.outworn {
		n += t.Bytes()
	}
	if !k.chained.IsZero() {
		n += k.chained.Bytes()
	}
	return n
}

// Close frees the memory, which nothing on the device may be using; closing again does
// nothing. Recording anything more gives vk.ErrClosed.
func (k *LayerKind) Close() error {
	if k == nil {
		return nil
	}
	err := k.sparse.Close()
	if k.arena != nil {
		err = errors.Join(err, k.arena.Close())
		k.arena = nil
	}
	for _, t := range k.scratch {
		k.outworn = append(k.outworn, t)
	}
	for _, t := range k.outworn {
		err = errors.Join(err, t.Close())
	}
	err = errors.Join(err, k.chained.Close())
	k.scratch, k.outworn, k.chained = nil, nil, tensor.Tensor{}
	return err
}

// linear returns the operation of a configuration, which layers share, and scratch for
// it. Linear layers of different names have scratch of their own, so that one does not
// wait for the other.
func (k *LayerKind) linear(name string, cfg projection.LinearConfig) (*projection.Linear, tensor.Tensor, error) {
	op := k.linears[cfg]
	if op == nil {
		var err error
		if op, err = projection.NewLinear(k.dev, cfg); err != nil {
			return nil, tensor.Tensor{}, err
		}
		k.linears[cfg] = op
	}
	n := op.ScratchLen(k.cfg.Tokens)
	have := k.scratch[name]
	if n <= have.Len() && (n == 0 || !have.IsZero()) {
		return op, have, nil
	}
	fresh, err := tensor.New(k.dev, "layer step", tensor.F32, n)
	if err != nil {
		return nil, tensor.Tensor{}, err
	}
	if !have.IsZero() {
		k.outworn = append(k.outworn, have)
	}
	k.scratch[name] = fresh
	return op, fresh, nil
}
