package layer

import (
	"context"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

const (
	opNewKernels = "layer: new kernels"
	opNewLayer   = "layer: new layer"
	opStep       = "layer: step"
	opLayer      = "layer"

	label = "layer step" // of the memory that kernels allocate with

	headDim  = cache.D
	indexDim = cache.IndexDim
)

// Config describes what kernels are built for.
type Config struct {
	Spec   model.LayerSpec
	Model  *model.Config // of the whole model, checked
	Ranks  int           // how many ranks share heads and groups; 0 counts as 1
	Tokens int           // T, padding included
	MaxLen int           // longest sequence in tokens; entries beyond are neither picked nor attended

	// Caches of a layer of this kind, or like the largest of them. Only the layouts and the
	// sizes of the pools count: they decide which builds of the kernels reach the memory. A
	// cache without a pool stands for any that one descriptor holds.
	Caches Caches

	Variant string // of the attention kernel; "" picks the best

	// Requests is the most requests of a step, and Workspace the most bytes of rows that an
	// attention which gathers them has at a time; 0: one, and attention.DefaultWorkspace.
	Requests  int
	Workspace uint64

	// Group is the number of consecutive tokens that usually belong to one request: 0 or 1 for
	// decode, more for prefill. Results do not depend on it.
	Group int
	// Invariant gives a token the same bits whatever Tokens is and wherever in a step it stands.
	Invariant bool
	// Quantise gives products inputs with as few bits as their weights have: 8 to those of FP8, 4
	// to those of NVFP4, which need an input_scale. FP8 weights are those in blocks.
	Quantise bool
	// Out is the type of a layer's output: tensor.BF16, or tensor.F32 for partial sums of ranks,
	// which are rounded once they are complete.
	Out tensor.DType

	// Scratch is wanted for what passes between operations. Kinds of layers that run one after the
	// other share one; Name tells them apart. It is placed before anything is recorded.
	Scratch *memory.Scratch
	Name    string

	// Count, unless nil, counts what else the kernels and their layers would allocate. Nothing is
	// then allocated, and nothing can be recorded.
	Count *memory.Count
}

// Caches are the caches that a layer reads or writes; those that it does not have are zero.
type Caches struct {
	Window     cache.KVCache       // a slot for each token
	Compressed cache.KVCache       // entries: a slot for each Ratio tokens
	State      cache.StateCache    // of the compressor
	IndexState cache.StateCache    // of the indexer's compressor
	Keys       cache.IndexKeyCache // the indexer's, a slot for each entry
}

// Kernels holds what the layers of one spec share for steps of T tokens: kernels, and the memory
// for what passes from one operation of a layer to the next. Submissions of its layers, and of
// those of other specs with the same Scratch, may follow each other without waiting; they do not
// run at the same time.
//
// NewLayer and Close must not run at the same time as anything else here; recording may.
type Kernels struct {
	dev    *vk.Device
	cfg    Config
	tune   *tuning.Layer
	want   wants
	heads  int // of this rank, as groups
	groups int
	arena  *tensor.Arena // of counters; nil once closed
	begun  bool          // see begin

	lists   lists
	main    *compressor // nil for layers without
	keys    *compressor // of the indexer, likewise
	indexer *selection  // likewise
	mla     mla
	output  output

	linears    map[projection.LinearConfig]*projection.Linear // that its layers share
	quantisers map[quantiserKey]*quantised

	norm   *projection.QKVNorm                  // made for the first layer that needs it
	insert map[tensor.DType]*projection.QInsert // by the type of the weights of the norm inside; 0: without

	qkv     tensor.Tensor // [T, QRank+512] bf16
	qr, kv  tensor.Tensor // [T, QRank], [T, 512] bf16, normed
	arrived tensor.Tensor // [T] u32, of the norm inside wqaWkv; 0 between layers
}

// NewKernels builds what does not depend on the format of weights, allocates counters, under the
// label "layer step", and wants T * (2*H*512 + G*ORank + QRank + ...) * 2 bytes and more of
// Config.Scratch. The caller closes it after its layers.
//
// Errors: vk.ErrArgument for more tokens than workgroups of a launch; those of the constructors of
// operations and of vk.Device.NewBuffer.
func NewKernels(dev *vk.Device, cfg Config) (*Kernels, error) {
	k, err := newKernels(dev, cfg)
	if err != nil {
		return nil, err
	}
	if err = k.build(); err == nil {
		k.tensors()
		list := k.counters()
		k.arena, err = cfg.Count.Arena(k.dev, vk.DeviceLocal, label, list)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", opNewKernels, err), k.Close())
	}
	return k, nil
}

// Check reports why there can be no Kernels of a configuration, before anything is built: too many
// tokens, or lists that no descriptor holds. It wants of Config.Scratch what is known by
// then, which the caller compares with the device.
func Check(dev *vk.Device, cfg Config) error {
	k, err := newKernels(dev, cfg)
	if err != nil {
		return err
	}
	if k.mla.gathers() {
		if err := cfg.listsFit(dev); err != nil {
			return err
		}
	}
	k.tensors()
	return nil
}

// newKernels divides the work.
func newKernels(dev *vk.Device, cfg Config) (*Kernels, error) {
	cfg.Ranks = max(cfg.Ranks, 1)
	grid := dev.Caps().MaxWorkgroupCount
	if most := int(min(grid[0], grid[1], grid[2])); cfg.Tokens > most {
		return nil, &vk.ArgumentError{Op: opNewKernels, Arg: "Tokens", Got: fmt.Sprint(cfg.Tokens), Want: fmt.Sprintf("1 to %d", most)}
	}
	k := &Kernels{dev: dev, cfg: cfg, tune: &tuning.Of(dev).Layer, heads: cfg.Model.Heads / cfg.Ranks, groups: cfg.Model.Groups / cfg.Ranks}
	k.want = wanted(k.tune, cfg.Tokens, cfg.Caches.Compressed.Pool.Bytes())
	compression := cfg.Spec.Compression
	if cfg.Spec.Compresses() {
		k.main = &compressor{compression: compression(headDim)}
	}
	if cfg.Spec.Picks == model.PickOwn {
		// In whole fours: of others the selection cannot go by tiles.
		entries := max(1, (cfg.MaxLen/cfg.Spec.Ratio+3)/4) * 4
		k.indexer = &selection{entries: entries, candidates: cfg.Spec.Candidates}
		if k.main != nil {
			k.keys = &compressor{compression: compression(indexDim)}
		}
		if n := cfg.Model.CandidateBlocks * cfg.Model.CandidateBlock; cfg.Spec.Candidates == model.CandidatesUsed {
			k.indexer.entries = min(k.indexer.entries, n)
		}
	}
	k.mla.width = cfg.entryWidth()
	k.mla.room = cfg.Room(dev)
	return k, nil
}

// entryWidth is the width of the rows of entries that are attended, 0 for none.
func (cfg *Config) entryWidth() int {
	switch {
	case cfg.Spec.Picks != model.PickNone:
		return cfg.Model.TopK
	case cfg.Spec.Ratio > 0:
		return attention.C128Width(cfg.MaxLen, cfg.Spec.Ratio)
	}
	return 0
}

func (k *Kernels) build() (err error) {
	k.insert = map[tensor.DType]*projection.QInsert{}
	k.linears, k.quantisers = map[projection.LinearConfig]*projection.Linear{}, map[quantiserKey]*quantised{}
	if err = k.lists.build(k); err != nil {
		return err
	}
	if err = k.buildCompressors(); err != nil {
		return err
	}
	if k.indexer != nil {
		if err = k.indexer.build(k); err != nil {
			return err
		}
	}
	if err = k.mla.build(k); err != nil {
		return err
	}
	return k.output.build(k)
}

func (k *Kernels) buildCompressors() error {
	c := &k.cfg.Caches
	saves := k.want.saves
	if k.main != nil {
		if err := k.main.build(k.dev, c.State, cache.CompressConfig{Save: saves, Page: c.Compressed.Layout.Page,
			Record: c.Compressed.Layout.Record,
			Eps:    k.cfg.Model.Eps, MaxBytes: max(c.State.Pool.Bytes(), c.Compressed.Pool.Bytes())}); err != nil {
			return err
		}
	}
	if k.keys != nil {
		return k.keys.build(k.dev, c.IndexState, cache.CompressConfig{Save: saves, Page: c.Keys.Layout.Page, Keys: c.Keys.Layout.Format,
			Hadamard: k.cfg.Model.Hadamard, Eps: k.cfg.Model.Eps, MaxBytes: max(c.IndexState.Pool.Bytes(), c.Keys.Pool.Bytes())})
	}
	return nil
}

// scratch is the kind's part of Config.Scratch.
func (k *Kernels) scratch() scratch { return scratch{k.cfg.Scratch, k.cfg.Name} }

// tensors wants scratch: before build, all but what only kernels know.
func (k *Kernels) tensors() {
	s, t, m := k.scratch(), k.cfg.Tokens, k.cfg.Model
	s.Add("qkv", edges|picking, &k.qkv, tensor.BF16, t, m.QRank+headDim)
	s.Add("qr", edges|picking, &k.qr, tensor.BF16, t, m.QRank)
	s.Add("kv", edges|picking, &k.kv, tensor.BF16, t, headDim)
	k.lists.tensors(s, k)
	if k.main != nil {
		k.main.tensors(s, "main", t)
	}
	if k.keys != nil {
		k.keys.tensors(s, "keys", t)
	}
	if k.indexer != nil {
		k.indexer.tensors(s, k)
	}
	if k.cfg.Spec.LatentKeys {
		s.Add("latents", picking, &k.main.latents, tensor.BF16, t, headDim)
	}
	k.mla.tensors(s, k)
	k.output.tensors(s, k)
}

// counters lists what is zeros between layers.
func (k *Kernels) counters() (l memory.List) {
	l.Add(&k.arrived, tensor.U32, k.cfg.Tokens)
	if k.indexer != nil {
		l.Add(&k.indexer.arrived, tensor.I32, k.cfg.Tokens, indexer.SelectCounters)
	}
	return l
}

// begin makes all counters as they are between layers, with the first layer.
func (k *Kernels) begin(ctx context.Context) error {
	if k.begun || k.cfg.Count != nil {
		return nil
	}
	for _, t := range k.Counters() {
		if err := t.Upload(ctx, make([]byte, t.Bytes())); err != nil {
			return err
		}
	}
	k.begun = true
	return nil
}

// Counters are tensors that hold zeros between layers.
func (k *Kernels) Counters() []tensor.Tensor {
	list := []tensor.Tensor{k.arrived}
	if k.indexer != nil {
		list = append(list, k.indexer.arrived)
	}
	return list
}

// Reset records fills that make all counters as they are between layers. After a launch that ran
// only in part they may be anything.
func (k *Kernels) Reset(rec *vk.Recorder) error {
	for _, t := range k.Counters() {
		if err := rec.Fill(t.View(), 0); err != nil {
			return err
		}
	}
	return k.output.reset(rec)
}

// TopK returns the picks [T, TopK] i32 of the layer that ran last: entries of the token's
// request in ascending order, then -1. It is a zero tensor for layers without an indexer.
func (k *Kernels) TopK() tensor.Tensor {
	if k.indexer == nil {
		return tensor.Tensor{}
	}
	return k.indexer.topK
}

// Room returns Config.Room.
func (k *Kernels) Room() attention.RowConfig { return k.mla.room }

// Bytes returns the memory that the layers share, beside scratch.
func (k *Kernels) Bytes() uint64 {
	if k == nil || k.arena == nil {
		return 0
	}
	return k.arena.Whole().Size + k.output.bytes()
}

// Close frees the memory, which nothing on the device may be using; closing again does nothing.
func (k *Kernels) Close() error {
	if k == nil || k.arena == nil {
		return nil
	}
	err := errors.Join(k.arena.Close(), k.output.close())
	k.arena = nil
	return err
}

// qkvNormOp returns the operation that norms the bottleneck and KV rows of layers whose products
// do not.
func (k *Kernels) qkvNormOp() (_ *projection.QKVNorm, err error) {
	if k.norm == nil {
		k.norm, err = projection.NewQKVNorm(k.dev, projection.QKVNormConfig{Rank: k.cfg.Model.QRank, Eps: k.cfg.Model.Eps})
	}
	return k.norm, err
}

// inserter returns the operation that norms queries and stores KV rows, after a norm of these
// with weights of that type; 0 for rows that are normed.
func (k *Kernels) inserter(norm tensor.DType) (*projection.QInsert, error) {
	if op := k.insert[norm]; op != nil {
		return op, nil
	}
	window := k.cfg.Caches.Window
	op, err := projection.NewQInsert(k.dev, projection.QInsertConfig{Page: window.Layout.Page, Record: window.Layout.Record,
		Eps: k.cfg.Model.Eps, KVNorm: norm, RotateOnly: k.cfg.Model.PlainQueries,
		MaxBytes: max(k.queryBytes(), window.Pool.Bytes())})
	if err == nil {
		k.insert[norm] = op
	}
	return op, err
}

// queryBytes is the size of the queries of heads, and of the attention's output.
func (k *Kernels) queryBytes() uint64 { return uint64(k.cfg.Tokens) * uint64(k.heads) * headDim * 2 }
