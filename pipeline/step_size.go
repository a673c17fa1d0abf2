package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

var le = binary.LittleEndian

// stepSize holds what steps padded to T tokens need: kernels, memory and recorded commands.
type stepSize struct {
	e      *Engine
	tokens int // T
	kinds  []*stepKind
	layers []stepLayer
	plans  map[*stepKind]*rowPlan // of kinds that gather rows

	scratch memory.Scratch // of kinds and layers
	buffer  *vk.Buffer     // that it is in

	host, device stepInputs
	staged       stagedInputs

	// Hidden states and picks, a tensor for each layer or one for all. Those in host memory are
	// allocated when they are first needed.
	in, out, topK, lse                 hiddenStates
	hostIn, hostOut, hostTopK, hostLSE hiddenStates

	recorded map[commandKey]*stepCommands
	broken   bool          // commands broke off, see repair
	begins   map[bool]bool // by Chunk.Draft: the caller's commands in front of the first layer write all of its input
}

// stepKind is a kind of layers in steps of a size.
type stepKind struct {
	*layer.Kind
	key  kindKey
	like *engineLayer // the first layer of the kind
}

// kindKey tells kinds of layers apart: those of one spec whose entries are in one pool.
type kindKey struct{ spec, pool string }

// stepLayer is a layer in steps of a size.
type stepLayer struct {
	*layer.Layer
	kind   *stepKind
	picks  layer.Picks             // see layer.Args
	blocks indexer.CandidateBlocks // likewise
}

// commandKey says what commands do: run one layer, prepare a step for that, or both for all
// layers; with hidden states copied from and to host memory or not; see stepSize.planRows.
type commandKey struct {
	layer  int
	host   bool
	pieces int  // of gathered rows; 0: pages are read in place
	draft  bool // of a step of drafts
}

// Values of commandKey.layer that are no layer.
const (
	prologue  = -1
	wholeStep = -2
)

// stepInputs is the metadata of a step, in one buffer.
type stepInputs struct {
	arena               *tensor.Arena
	queryStart, seqLens tensor.Tensor // [R+1], [R] i32
	request, positions  tensor.Tensor // [T] i32
	valid               tensor.Tensor // [T] u8
	updates             tensor.Tensor // [1 + 2*capacity] u32, see cache.TableUpdateArgs; in host memory only
}

// stagedInputs are where the metadata is written before it goes to mapped memory in one piece: that
// memory may be slow for anything but long runs of writes.
type stagedInputs struct {
	all                                                     []byte
	queryStart, seqLens, updates, request, positions, valid []byte
}

func stage(in *stepInputs) (d stagedInputs) {
	d.all = make([]byte, in.arena.Whole().Size)
	d.queryStart, d.seqLens, d.updates = d.part(in.queryStart), d.part(in.seqLens), d.part(in.updates)
	d.request, d.positions, d.valid = d.part(in.request), d.part(in.positions), d.part(in.valid)
	return d
}

// part returns the bytes in which tensor t is written.
func (d *stagedInputs) part(t tensor.Tensor) []byte { return d.all[t.Offset : t.Offset+t.Bytes()] }

// hiddenStates is a list of tensors of one shape in one buffer.
type hiddenStates struct {
	arena *tensor.Arena
	list  []tensor.Tensor
}

func (e *Engine) newHiddenStates(mem vk.Memory, n int, dt tensor.DType, shape ...int) (h hiddenStates, err error) {
	h.list = make([]tensor.Tensor, n)
	var list memory.List
	for i := range h.list {
		list.Add(&h.list[i], dt, shape...)
	}
	h.arena, err = e.count.in(mem).hidden.Arena(e.dev, mem, "hidden states", list)
	return h, err
}

func (h *hiddenStates) buffer() *vk.Buffer { return h.arena.Whole().Buffer }

func (h *hiddenStates) bytes() uint64 {
	if h.arena == nil {
		return 0
	}
	return h.arena.Whole().Size
}

// of returns the tensor of a layer: it may be one for all layers.
func (h *hiddenStates) of(layer int) tensor.Tensor {
	switch {
	case len(h.list) == 0:
		return tensor.Tensor{}
	case len(h.list) == 1:
		return h.list[0]
	}
	return h.list[layer]
}

// size returns the size that a step of `tokens` tokens is padded to.
func (e *Engine) size(tokens int) int {
	return min(1<<bits.Len(uint(tokens-1)), e.opts.MaxStep)
}

// group returns the least number of consecutive tokens of a step that belong to one session, on
// average: a step of more tokens than there are sessions has chunks of several. It may decide the
// number of heads that a subgroup adds up, so an invariant engine has one for all steps.
func (e *Engine) group(size int) int {
	if e.opts.Invariant {
		return 1
	}
	return ceilDiv(size, e.opts.MaxSessions)
}

// capacity returns the number of entries of block tables that a step can change: for each pool
// those that its tokens fill, and for each session the page that they begin in, which a copy may
// replace, and the page that they end in.
func (e *Engine) capacity(tokens int) int {
	n := 0
	for _, p := range e.pools {
		n += ceilDiv(tokens, p.Page*p.Tokens) + 2*min(tokens, e.opts.MaxSessions)
	}
	return n
}

// out returns the type of outputs: partial sums are rounded once they are complete.
func (e *Engine) out() tensor.DType {
	if e.ranks > 1 {
		return tensor.F32
	}
	return tensor.BF16
}

// heads returns the number of heads that the engine's weights have.
func (e *Engine) heads() int { return e.cfg.Heads / e.ranks }

// ranksOf returns among how many devices the weights' heads are divided. Weights of a wrong shape
// count as whole: the layers refuse them.
func ranksOf(cfg *model.Config, layers []*model.DeviceLayer) int {
	heads := layers[0].QB.N / cache.D
	if heads < 1 || cfg.Heads%heads != 0 || cfg.Groups%(cfg.Heads/heads) != 0 {
		return 1
	}
	return cfg.Heads / heads
}

// kindKey tells the kind of a layer.
func (l *engineLayer) kindKey() kindKey {
	key := kindKey{spec: l.spec.Name}
	if p := l.entries.spec.Pool(model.StoreEntries); p != nil {
		key.pool = p.Name
	}
	return key
}

// kindConfig returns the configuration of layers like l, in steps of `tokens` tokens.
func (e *Engine) kindConfig(l *engineLayer, tokens int) layer.KindConfig {
	o := &e.opts
	return layer.KindConfig{Spec: l.spec.LayerSpec, Model: &e.cfg, Ranks: e.ranks, Tokens: tokens, MaxLen: o.MaxTokens,
		Caches: e.greatest(l), Variant: o.Variant, Hadamard: e.cfg.Hadamard, Group: e.group(tokens), Invariant: o.Invariant,
		Quantise: o.QuantiseActivations, LSE: o.KeepLSE, Out: e.out(), Name: fmt.Sprint(l.kindKey()),
		Requests: o.MaxSessions, Workspace: gatherBytes, Count: e.count.in(vk.DeviceLocal).steps}
}

func (b *stepSize) build(ctx context.Context) error {
	e := b.e
	for i, l := range e.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.buildLayer(ctx, l); err != nil {
			return fmt.Errorf("layers[%d]: %w", i, err)
		}
	}
	// Lists of entries, which wait for other lists, come last.
	slices.SortStableFunc(b.kinds, func(x, y *stepKind) int { return x.like.spec.Ratio - y.like.spec.Ratio })
	if err := b.buildInputs(); err != nil {
		return err
	}
	if err := b.buildHidden(); err != nil {
		return err
	}
	e.share(&b.scratch, b.layers, b.tokens, len(b.plans) > 0)
	return nil
}

// buildInputs makes the memory for the metadata of a step.
func (b *stepSize) buildInputs() (err error) {
	e := b.e
	for _, in := range []struct {
		to  *stepInputs
		mem vk.Memory
	}{{&b.host, vk.Upload}, {&b.device, vk.DeviceLocal}} {
		var list memory.List
		list.Add(&in.to.queryStart, tensor.I32, e.opts.MaxSessions+1)
		list.Add(&in.to.seqLens, tensor.I32, e.opts.MaxSessions)
		list.Add(&in.to.request, tensor.I32, b.tokens)
		list.Add(&in.to.positions, tensor.I32, b.tokens)
		list.Add(&in.to.valid, tensor.U8, b.tokens)
		for _, k := range b.kinds {
			if p := b.plans[k]; p != nil {
				p.list(map[bool]*attention.PlanTensors{true: &p.host, false: &p.device}[in.mem == vk.Upload], &list, b.tokens)
			}
		}
		if in.mem == vk.Upload { // last, see stepSize.fill
			list.Add(&in.to.updates, tensor.U32, 1+2*e.capacity(b.tokens))
		}
		if in.to.arena, err = e.count.in(in.mem).steps.Arena(e.dev, in.mem, "step metadata", list); err != nil {
			return err
		}
	}
	if e.count != nil {
		return nil
	}
	b.staged = stage(&b.host)
	for _, p := range b.plans {
		p.staged = [3][]byte{b.staged.part(p.host.Places), b.staged.part(p.host.Heads), b.staged.part(p.host.Runs)}
	}
	return nil
}

// buildLayer makes a layer, and its kind if it is the first of it.
func (b *stepSize) buildLayer(ctx context.Context, of *engineLayer) error {
	key := of.kindKey()
	at := slices.IndexFunc(b.kinds, func(k *stepKind) bool { return k.key == key })
	if at < 0 {
		cfg := b.e.kindConfig(of, b.tokens)
		cfg.Scratch = &b.scratch
		k, err := layer.NewKind(b.e.dev, cfg)
		if err != nil {
			return err
		}
		at = len(b.kinds)
		b.kinds = append(b.kinds, &stepKind{Kind: k, key: key, like: of})
		if err := b.gather(b.kinds[at]); err != nil {
			return err
		}
	}
	k := b.kinds[at]
	var l *layer.Layer
	err := b.e.await(func() (err error) {
		l, err = k.NewLayer(ctx, of.w)
		return err
	})
	if err != nil { // also for an engine that was closed since there is a layer
		return errors.Join(err, l.Close())
	}
	b.layers = append(b.layers, stepLayer{Layer: l, kind: k})
	return nil
}

// buildHidden makes the memory for hidden states and kept picks.
func (b *stepSize) buildHidden() (err error) {
	e := b.e
	n := len(e.layers)
	if e.oneTensor() {
		n = 1
	}
	in, out := vk.DeviceLocal, vk.DeviceLocal
	if e.mapsHidden() {
		in, out = vk.Upload, vk.Readback
	}
	if b.in, err = e.newHiddenStates(in, n, tensor.BF16, b.tokens, e.cfg.Hidden); err != nil {
		return err
	}
	if e.count == nil {
		b.in.buffer().Track()
	}
	if b.out, err = e.newHiddenStates(out, n, e.out(), b.tokens, e.cfg.Hidden); err != nil {
		return err
	}
	kept := len(e.layers)
	if e.opts.LayerByLayer {
		kept = 1 // else those of all layers are read when the step has run
	}
	if e.opts.KeepLSE {
		if b.lse, err = e.newHiddenStates(out, kept, tensor.F32, b.tokens, e.heads()); err != nil {
			return err
		}
	}
	if !e.opts.KeepTopK || !slices.ContainsFunc(e.layers, func(l *engineLayer) bool { return l.spec.Picks == model.PickOwn }) {
		return nil
	}
	b.topK, err = e.newHiddenStates(out, kept, tensor.I32, b.tokens, e.TopK())
	return err
}

// twins are tensors on the device and the same in host memory.
type twins struct {
	device, host *hiddenStates
	mem          vk.Memory // of host
}

// results are those that a layer writes, hidden all.
func (b *stepSize) results() []twins {
	return []twins{{&b.out, &b.hostOut, vk.Readback}, {&b.topK, &b.hostTopK, vk.Readback}, {&b.lse, &b.hostLSE, vk.Readback}}
}

func (b *stepSize) hidden() []twins { return append(b.results(), twins{&b.in, &b.hostIn, vk.Upload}) }

// openHost makes the hidden states in host memory.
func (b *stepSize) openHost() (err error) {
	e := b.e
	for _, x := range b.hidden() {
		if x.host.arena != nil || x.device.arena == nil {
			continue
		}
		if e.mapsHidden() {
			*x.host = *x.device
			continue
		}
		like := x.device.list[0]
		fresh, err := e.newHiddenStates(x.mem, len(x.device.list), like.DType, like.Shape...)
		if err != nil {
			return err
		}
		*x.host = fresh
		if e.count != nil {
			continue
		}
		// Padding is zeros, not what other memory left there: a dump has no stray NaN.
		clear(fresh.arena.Whole().Buffer.Mapped())
	}
	return nil
}

// bytes returns the memory of steps beside scratch, that of hidden states, and what of both is the
// host's.
func (b *stepSize) bytes() (steps, hidden, host uint64) {
	host = b.host.arena.Whole().Size
	steps = host + b.device.arena.Whole().Size
	for _, k := range b.kinds {
		steps += k.Bytes()
	}
	for _, l := range b.layers {
		steps += l.Bytes()
	}
	for _, x := range b.hidden() {
		for _, h := range []*hiddenStates{x.device, x.host} {
			if n := h.bytes(); n > 0 && (h == x.device || h.arena != x.device.arena) {
				hidden += n
				if h.buffer().Mapped() != nil {
					host += n
				}
			}
		}
	}
	return steps, hidden, host
}

// forget drops the recorded commands, because memory that they use is replaced.
func (b *stepSize) forget() error {
	var err error
	for _, c := range b.recorded {
		err = errors.Join(err, c.Close())
	}
	clear(b.recorded)
	return err
}

func (b *stepSize) close() error {
	err := b.forget()
	for _, l := range b.layers {
		err = errors.Join(err, l.Close())
	}
	for _, k := range b.kinds {
		err = errors.Join(err, k.Close())
	}
	all := []*tensor.Arena{b.host.arena, b.device.arena}
	for _, x := range b.hidden() {
		all = append(all, x.device.arena, x.host.arena)
	}
	for _, a := range all {
		if a != nil {
			err = errors.Join(err, a.Close())
		}
	}
	return err
}
