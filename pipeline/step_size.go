package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

var le = binary.LittleEndian

// stepSize is what steps padded to T tokens need: kernels, memory and recorded commands.
type stepSize struct {
	e      *Engine
	tokens int // T
	kinds  []*stepKind
	layers []stepLayer
	picks  []*tensor.Arena        // those of layers that others read them from
	plans  map[*stepKind]*rowPlan // of kinds that gather rows

	host, device stepInputs
	draft        stepDraft

	// Hidden states and picks, a tensor for each layer or one for all. Those in host memory are
	// allocated when they are first needed.
	in, out, topK, lse                 hiddenStates
	hostIn, hostOut, hostTopK, hostLSE hiddenStates

	recorded map[commandKey]*stepCommands
	broken   bool // commands broke off, see repair
	begins   bool // the caller's commands in front of layer 0 write all of its input
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
	kind  *stepKind
	picks layer.Picks // see layer.Args
}

// commandKey says what commands do: run one layer, prepare a step for that, or both for all
// layers; with hidden states in host memory or in that of the device; see stepSize.planRows.
type commandKey struct {
	layer  int
	host   bool
	pieces int // of gathered rows; 0: pages are read in place
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

// stepDraft is where the metadata is written before it goes to mapped memory in one piece: that
// memory may be slow for anything but long runs of writes.
type stepDraft struct {
	all                                                     []byte
	queryStart, seqLens, updates, request, positions, valid []byte
}

func newStepDraft(in *stepInputs) (d stepDraft) {
	d.all = make([]byte, in.arena.Whole().Size)
	d.queryStart, d.seqLens, d.updates = d.part(in.queryStart), d.part(in.seqLens), d.part(in.updates)
	d.request, d.positions, d.valid = d.part(in.request), d.part(in.positions), d.part(in.valid)
	return d
}

// part is where a tensor is written.
func (d *stepDraft) part(t tensor.Tensor) []byte { return d.all[t.Offset : t.Offset+t.Bytes()] }

// hiddenStates is a list of tensors of one shape in one buffer.
type hiddenStates struct {
	arena *tensor.Arena
	list  []tensor.Tensor
}

func newHiddenStates(dev *vk.Device, mem vk.Memory, n int, dt tensor.DType, shape ...int) (h hiddenStates, err error) {
	h.list = make([]tensor.Tensor, n)
	var list memory.List
	for i := range h.list {
		list.Add(&h.list[i], dt, shape...)
	}
	h.arena, err = list.Allocate(dev, mem, "hidden states")
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

// size returns the size that a step of so many tokens is padded to.
func (e *Engine) size(tokens int) int {
	return min(1<<bits.Len(uint(tokens-1)), e.opts.MaxStep)
}

// group is how many consecutive tokens of a step belong to one session at least, on average: a
// step of more tokens than there are sessions has chunks of several. It may choose how many heads
// a subgroup adds up, so an invariant engine has one for all steps.
func (e *Engine) group(size int) int {
	if e.opts.Invariant {
		return 1
	}
	return ceilDiv(size, e.opts.MaxSessions)
}

// capacity is how many entries of block tables a step can change: for each pool those that its
// tokens fill, and for each session the page that they begin in, which a copy may replace, and the
// page that they end in.
func (e *Engine) capacity(tokens int) int {
	n := 0
	for _, p := range e.pools {
		n += ceilDiv(tokens, p.Page*p.Tokens) + 2*min(tokens, e.opts.MaxSessions)
	}
	return n
}

// stepSize returns what there is for a number of tokens.
func (e *Engine) stepSize(ctx context.Context, tokens int) (*stepSize, error) {
	size := e.size(tokens)
	if b := e.sizes[size]; b != nil {
		return b, nil
	}
	b := &stepSize{e: e, tokens: size, recorded: map[commandKey]*stepCommands{}, plans: map[*stepKind]*rowPlan{}}
	if err := b.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("steps of %d tokens: %w", size, err), b.close())
	}
	e.sizes[size] = b
	return b, nil
}

// out is the type of outputs: sums of ranks are rounded when they are complete.
func (e *Engine) out() tensor.DType {
	if e.opts.Ranks > 1 {
		return tensor.F32
	}
	return tensor.BF16
}

// heads is how many a rank has.
func (e *Engine) heads() int { return e.cfg.Heads / e.opts.Ranks }

// kindKey tells the kind of a layer.
func (l *engineLayer) kindKey() kindKey {
	key := kindKey{spec: l.spec.Name}
	if p := l.entries.spec.Pool(model.StoreEntries); p != nil {
		key.pool = p.Name
	}
	return key
}

// kindConfig is the configuration of layers like l, in steps of so many tokens.
func (e *Engine) kindConfig(l *engineLayer, tokens int) layer.KindConfig {
	o := &e.opts
	return layer.KindConfig{Spec: l.spec.LayerSpec, Model: &e.cfg, Ranks: o.Ranks, Tokens: tokens, MaxLen: o.MaxTokens,
		Caches: e.greatest(l), Variant: o.Variant, Hadamard: o.Hadamard, Group: e.group(tokens), Invariant: o.Invariant,
		Output: o.Output.format(), Quantise: o.QuantiseActivations, LSE: o.KeepLSE, Out: e.out(),
		Requests: o.MaxSessions, Workspace: o.Workspace}
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
	if err := b.buildPicks(); err != nil {
		return err
	}
	return b.buildHidden()
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
		if in.to.arena, err = list.Allocate(e.dev, in.mem, "step metadata"); err != nil {
			return err
		}
	}
	b.draft = newStepDraft(&b.host)
	for _, p := range b.plans {
		p.draft = [3][]byte{b.draft.part(p.host.Places), b.draft.part(p.host.Heads), b.draft.part(p.host.Runs)}
	}
	return nil
}

// buildLayer makes a layer, and its kind if it is the first of it.
func (b *stepSize) buildLayer(ctx context.Context, of *engineLayer) error {
	key := of.kindKey()
	at := slices.IndexFunc(b.kinds, func(k *stepKind) bool { return k.key == key })
	if at < 0 {
		k, err := layer.NewKind(b.e.dev, b.e.kindConfig(of, b.tokens))
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

// buildPicks makes memory for the picks that other layers read, once for each indexer.
func (b *stepSize) buildPicks() error {
	e := b.e
	for i, l := range e.layers {
		if l.spec.Picks != model.PickEarlier {
			continue
		}
		from := &b.layers[slices.Index(e.layers, l.picks)]
		if from.picks.Slots.IsZero() {
			var list memory.List
			list.Add(&from.picks.Slots, tensor.I32, b.tokens, e.TopK())
			list.Add(&from.picks.Lens, tensor.I32, b.tokens)
			if len(b.plans) > 0 {
				list.Add(&from.picks.TopK, tensor.I32, b.tokens, e.TopK())
			}
			arena, err := list.Allocate(e.dev, vk.DeviceLocal, "picks")
			if arena != nil {
				b.picks = append(b.picks, arena)
			}
			if err != nil {
				return err
			}
		}
		b.layers[i].picks = from.picks
	}
	return nil
}

// buildHidden makes the memory for hidden states and kept picks.
func (b *stepSize) buildHidden() (err error) {
	e := b.e
	n := len(e.layers)
	if e.oneTensor() {
		n = 1
	}
	if b.in, err = newHiddenStates(e.dev, vk.DeviceLocal, n, tensor.BF16, b.tokens, e.cfg.Hidden); err != nil {
		return err
	}
	b.in.buffer().Track()
	if b.out, err = newHiddenStates(e.dev, vk.DeviceLocal, n, e.out(), b.tokens, e.cfg.Hidden); err != nil {
		return err
	}
	kept := len(e.layers)
	if e.opts.LayerByLayer {
		kept = 1 // else those of all layers are read when the step has run
	}
	if e.opts.KeepLSE {
		if b.lse, err = newHiddenStates(e.dev, vk.DeviceLocal, kept, tensor.F32, b.tokens, e.heads()); err != nil {
			return err
		}
	}
	if !e.opts.KeepTopK || !slices.ContainsFunc(e.layers, func(l *engineLayer) bool { return l.spec.Picks == model.PickOwn }) {
		return nil
	}
	b.topK, err = newHiddenStates(e.dev, vk.DeviceLocal, kept, tensor.I32, b.tokens, e.TopK())
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
		like := x.device.list[0]
		fresh, err := newHiddenStates(e.dev, x.mem, len(x.device.list), like.DType, like.Shape...)
		if err != nil {
			return err
		}
		*x.host = fresh
		// Padding is zeros, not what other memory left there: a dump has no stray NaN.
		clear(fresh.arena.Whole().Buffer.Mapped())
	}
	return nil
}

// commands returns the commands for a key, for a step with so much work. They are recorded if there
// are none, if they have to be divided into other submissions, and once workgroups starved.
func (b *stepSize) commands(key commandKey, work float64) (*stepCommands, error) {
	old, plain := b.recorded[key], b.e.dev.Starved()
	like := old
	if old != nil && old.plain != plain {
		like = nil // it has other operations
	} else if old != nil && old.suits(b.e.opts.SubmitBudget, work) {
		return old, nil
	}
	rec, err := b.e.dev.NewRecorder()
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if err := rec.Prove(); err != nil {
		return nil, err
	}
	fresh, err := b.e.divide(rec, like)
	if err == nil {
		err = b.e.time(rec)
	}
	if err != nil {
		return nil, err
	}
	fresh.plain = plain
	if err := b.record(rec, key); err != nil {
		return nil, err
	}
	if fresh.Commands, err = rec.End(); err != nil {
		return nil, err
	}
	fresh.parts = fresh.Division()
	b.recorded[key] = fresh
	if old != nil {
		err = old.Close()
	}
	return fresh, err
}

// record records what a key says.
func (b *stepSize) record(rec *vk.Recorder, key commandKey) error {
	if key.layer < 0 {
		if err := b.recordTables(rec); err != nil {
			return err
		}
	}
	first, end := key.layer, key.layer+1
	switch key.layer {
	case prologue:
		return b.recordLists(rec)
	case wholeStep:
		first, end = 0, len(b.layers)
	}
	whole := key.layer == wholeStep
	if key.host && whole {
		if err := rec.Copy(b.in.arena.Whole(), b.hostIn.arena.Whole()); err != nil {
			return err
		}
	}
	for i := first; i < end; i++ {
		var beside func(*vk.Recorder) error
		if whole && i == 0 {
			beside = b.recordLists
		}
		if err := b.recordLayer(rec, i, key, beside); err != nil {
			return err
		}
	}
	if !key.host || !whole {
		return nil
	}
	for _, x := range b.results() {
		if x.device.arena == nil {
			continue
		}
		if err := rec.Copy(x.host.arena.Whole(), x.device.arena.Whole()); err != nil {
			return err
		}
	}
	return nil
}

// recordTables records what a step begins with: it copies the metadata to the device and, beside
// that, writes the changed entries of block tables, whose list is read in host memory.
func (b *stepSize) recordTables(rec *vk.Recorder) error {
	to := b.device.arena.Whole()
	if err := rec.Copy(to, vk.View{Buffer: b.host.arena.Whole().Buffer, Size: to.Size}); err != nil {
		return err
	}
	return b.e.update.Record(rec, cache.TableUpdateArgs{List: b.host.updates, Tables: b.e.words()})
}

// recordLists records what is computed once for a step: where rows go, and index lists. In a
// recording of all layers it runs beside the first products of layer 0, which do not need it.
func (b *stepSize) recordLists(rec *vk.Recorder) error {
	for _, k := range b.kinds {
		if err := k.RecordStep(rec, b.args(k)); err != nil {
			return err
		}
	}
	return nil
}

// args are the arguments of a step for layers of a kind.
func (b *stepSize) args(k *stepKind) layer.StepArgs {
	in, table := &b.device, func(s model.Store) tensor.Tensor { return b.e.table(k.like, s) }
	return layer.StepArgs{
		QueryStart: in.queryStart, SeqLens: in.seqLens, TokenToReq: in.request, Positions: in.positions, IsValid: in.valid,
		Tables: layer.Tables{Window: table(model.StoreWindow), Compressed: table(model.StoreEntries), Keys: table(model.StoreKeys),
			State: table(model.StoreState), IndexState: table(model.StoreKeyState)}}
}

// recordLayer records a layer, with the caller's commands in front of it, and behind the last one.
// With key.host its hidden states come from host memory and go back there; a whole step copies
// those of all layers at once instead. beside is that of layer.Args.
func (b *stepSize) recordLayer(rec *vk.Recorder, i int, key commandKey, beside func(*vk.Recorder) error) error {
	l, host := b.e.layers[i], key.host && key.layer != wholeStep
	in, out, topK := b.in.of(i), b.out.of(i), b.topK.of(i)
	if host && i < b.e.given() {
		if err := rec.Copy(in.View(), b.hostIn.of(i).View()); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	if err := b.recordBetween(rec, i); err != nil {
		return err
	}
	x := &b.layers[i]
	step := b.args(x.kind)
	b.rowArgs(&step, x.kind, key.pieces)
	err := x.Record(rec, step, layer.Args{Hidden: in, CosSin: b.e.ropes[l.rope], Out: out,
		LSE: b.lse.of(i), Caches: l.reads(), Picks: x.picks, Beside: beside})
	keep := !topK.IsZero() && l.spec.Picks == model.PickOwn
	if err == nil && keep {
		err = rec.Copy(topK.View(), x.kind.TopK().View())
	}
	if err != nil {
		return fmt.Errorf("layer %d: %w", i, err)
	}
	if i == len(b.layers)-1 {
		if err := b.recordBetween(rec, i+1); err != nil {
			return err
		}
	}
	if !host {
		return nil
	}
	for _, x := range b.results() {
		if x.device.arena == nil || x.device == &b.topK && !keep {
			continue
		}
		if err := rec.Copy(x.host.of(i).View(), x.device.of(i).View()); err != nil {
			return err
		}
	}
	return nil
}

// bytes returns the memory of steps, and that of hidden states.
func (b *stepSize) bytes() (steps, hidden uint64) {
	for _, in := range []*stepInputs{&b.host, &b.device} {
		steps += in.arena.Whole().Size
	}
	for _, k := range b.kinds {
		steps += k.Bytes()
	}
	for _, l := range b.layers {
		steps += l.Bytes()
	}
	for _, a := range b.picks {
		steps += a.Whole().Size
	}
	for _, x := range b.hidden() {
		hidden += x.device.bytes() + x.host.bytes()
	}
	return steps, hidden
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

// forget drops all recorded commands.
func (e *Engine) forget() error {
	var err error
	for _, b := range e.sizes {
		err = errors.Join(err, b.forget())
	}
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
	all := append(b.picks, b.host.arena, b.device.arena)
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

func putFloat(to []byte, v float32) { le.PutUint32(to, math.Float32bits(v)) }
