package commands

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

var le = binary.LittleEndian

// Size holds what steps padded to T tokens need: kernels, memory and recorded commands.
type Size struct {
	Tokens   int // T
	Kinds    []*Kind
	Layers   []StepLayer
	Scratch  memory.Scratch // of kinds and layers
	Buffer   *vk.Buffer     // that it is in
	Recorded map[Key]*Commands
	Updates  int // entries of block tables that the last Fill wrote

	forgotten map[Key]*Commands // closed; for their times

	z     *Sizes
	plans map[*Kind]*rowPlan // of kinds that gather rows

	host, device inputs
	staged       staging

	// Hidden states and picks, a tensor for each layer or one for all. Those in host memory are
	// allocated when they are first needed.
	in, out, topK             states
	hostIn, hostOut, hostTopK states

	broken bool          // commands broke off, see Repair
	begins map[bool]bool // by Place.Draft: the caller's commands in front of the first layer write all of its input
}

// Kind is a kind of layers in steps of a size.
type Kind struct {
	*layer.Kernels
	key  kindKey
	like int // the first layer of the kind
}

// kindKey tells kinds of layers apart: those of one spec whose entries are in one pool.
type kindKey struct{ spec, pool string }

// StepLayer is a layer in steps of a size.
type StepLayer struct {
	*layer.Layer
	kind   *Kind
	picks  layer.PickedSlots       // see layer.Args
	blocks indexer.CandidateBlocks // likewise
}

// Key names commands: they run one layer, prepare a step for that, or both for all layers, with
// hidden states copied from and to host memory or not; see Size.planRows.
type Key struct {
	Layer  int
	Host   bool
	Pieces int  // of gathered rows; 0: pages are read in place
	Draft  bool // of a step of drafts
}

// Values of Key.Layer that are no layer.
const (
	Prologue = -1
	Whole    = -2
)

// inputs is the metadata of a step, in one buffer.
type inputs struct {
	arena               *tensor.Arena
	queryStart, seqLens tensor.Tensor // [R+1], [R] i32
	request, positions  tensor.Tensor // [T] i32
	valid               tensor.Tensor // [T] u8
	updates             tensor.Tensor // [1 + 2*capacity] u32, see cache.TableUpdateArgs; in host memory only
}

// staging holds the metadata before it goes to mapped memory in one piece: that
// memory may be slow for anything but long runs of writes.
type staging struct {
	all                                                     []byte
	queryStart, seqLens, updates, request, positions, valid []byte
}

func stage(in *inputs) (d staging) {
	d.all = make([]byte, in.arena.Whole().Size)
	d.queryStart, d.seqLens, d.updates = d.part(in.queryStart), d.part(in.seqLens), d.part(in.updates)
	d.request, d.positions, d.valid = d.part(in.request), d.part(in.positions), d.part(in.valid)
	return d
}

// part returns the bytes in which tensor t is written.
func (d *staging) part(t tensor.Tensor) []byte { return d.all[t.Offset : t.Offset+t.Bytes()] }

// SizeOf returns the size that a step of `tokens` tokens is padded to.
func (z *Sizes) SizeOf(tokens int) int {
	return min(1<<bits.Len(uint(tokens-1)), z.cfg.MaxStep)
}

// group returns the least number of consecutive tokens of a step that belong to one session, on
// average: a step of more tokens than there are sessions has chunks of several. It may decide the
// number of heads that a subgroup adds up, so an invariant engine has one for all steps.
func (z *Sizes) group(size int) int {
	if z.cfg.Invariant {
		return 1
	}
	return ceilDiv(size, z.cfg.MaxSessions)
}

// out returns the type of outputs: partial sums are rounded once they are complete.
func (z *Sizes) out() tensor.DType {
	if z.cfg.Ranks > 1 {
		return tensor.F32
	}
	return tensor.BF16
}

// kindKey tells the kind of a layer.
func (z *Sizes) kindKey(i int) kindKey {
	l := &z.cfg.Layers[i]
	key := kindKey{spec: l.Spec.Name}
	if p := z.cfg.Layers[l.Entries].Spec.Pool(model.StoreEntries); p != nil {
		key.pool = p.Name
	}
	return key
}

// LayerConfig returns the configuration of layers like layer i, in steps of `tokens` tokens.
func (z *Sizes) LayerConfig(i, tokens int) layer.Config {
	o := &z.cfg
	return layer.Config{Spec: o.Layers[i].Spec.LayerSpec, Model: z.cfg.Model, Ranks: z.cfg.Ranks, Tokens: tokens, MaxLen: o.MaxTokens,
		Caches: o.Pages.Greatest(i), Variant: o.Variant, Group: z.group(tokens), Invariant: o.Invariant,
		Quantise: o.Quantise, Out: z.out(), Name: fmt.Sprint(z.kindKey(i)),
		Requests: o.MaxSessions, Workspace: o.Workspace, Count: z.cfg.Count.in(vk.DeviceLocal).steps}
}

func (b *Size) build(ctx context.Context) error {
	z := b.z
	for i := range z.cfg.Layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.buildLayer(ctx, i); err != nil {
			return fmt.Errorf("layers[%d]: %w", i, err)
		}
	}
	// Lists of entries, which wait for other lists, come last.
	slices.SortStableFunc(b.Kinds, func(x, y *Kind) int { return z.ratio(x) - z.ratio(y) })
	if err := b.buildInputs(); err != nil {
		return err
	}
	if err := b.buildHidden(); err != nil {
		return err
	}
	z.share(&b.Scratch, b.Layers, b.Tokens, len(b.plans) > 0)
	return nil
}

// ratio is that of a kind's layers.
func (z *Sizes) ratio(k *Kind) int { return z.cfg.Layers[k.like].Spec.Ratio }

// buildInputs makes the memory for the metadata of a step.
func (b *Size) buildInputs() (err error) {
	z := b.z
	for _, in := range []struct {
		to  *inputs
		mem vk.Memory
	}{{&b.host, vk.Upload}, {&b.device, vk.DeviceLocal}} {
		var list memory.List
		list.Add(&in.to.queryStart, tensor.I32, z.cfg.MaxSessions+1)
		list.Add(&in.to.seqLens, tensor.I32, z.cfg.MaxSessions)
		list.Add(&in.to.request, tensor.I32, b.Tokens)
		list.Add(&in.to.positions, tensor.I32, b.Tokens)
		list.Add(&in.to.valid, tensor.U8, b.Tokens)
		for _, k := range b.Kinds {
			if p := b.plans[k]; p != nil {
				p.list(map[bool]*attention.PlanTensors{true: &p.host, false: &p.device}[in.mem == vk.Upload], &list, b.Tokens)
			}
		}
		if in.mem == vk.Upload { // last, see Fill
			list.Add(&in.to.updates, tensor.U32, 1+2*z.cfg.Pages.Entries(b.Tokens))
		}
		if in.to.arena, err = z.cfg.Count.in(in.mem).steps.Arena(z.cfg.Dev, in.mem, "step metadata", list); err != nil {
			return err
		}
	}
	if z.cfg.Count != nil {
		return nil
	}
	b.staged = stage(&b.host)
	for _, p := range b.plans {
		p.staged = [3][]byte{b.staged.part(p.host.Places), b.staged.part(p.host.Heads), b.staged.part(p.host.Runs)}
	}
	return nil
}

// buildLayer makes a layer, and its kind if it is the first of it.
func (b *Size) buildLayer(ctx context.Context, i int) error {
	key := b.z.kindKey(i)
	at := slices.IndexFunc(b.Kinds, func(k *Kind) bool { return k.key == key })
	if at < 0 {
		cfg := b.z.LayerConfig(i, b.Tokens)
		cfg.Scratch = &b.Scratch
		k, err := layer.NewKernels(b.z.cfg.Dev, cfg)
		if err != nil {
			return err
		}
		at = len(b.Kinds)
		b.Kinds = append(b.Kinds, &Kind{Kernels: k, key: key, like: i})
		if err := b.gather(b.Kinds[at]); err != nil {
			return err
		}
	}
	k := b.Kinds[at]
	var l *layer.Layer
	err := b.z.cfg.Wait(func() (err error) {
		l, err = k.NewLayer(ctx, b.z.cfg.Layers[i].W)
		return err
	})
	if err != nil { // also for an engine that was closed since there is a layer
		return errors.Join(err, l.Close())
	}
	b.Layers = append(b.Layers, StepLayer{Layer: l, kind: k})
	return nil
}

// bytes returns the memory of steps beside scratch, that of hidden states, and what of both is the
// host's.
func (b *Size) bytes() (steps, hidden, host uint64) {
	host = b.host.arena.Whole().Size
	steps = host + b.device.arena.Whole().Size
	for _, k := range b.Kinds {
		steps += k.Bytes()
	}
	for _, l := range b.Layers {
		steps += l.Bytes()
	}
	for _, x := range b.hidden() {
		for _, h := range []*states{x.device, x.host} {
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

// forget drops the recorded commands, because memory that they use is replaced. How long they took
// is remembered.
func (b *Size) forget() error {
	var err error
	for key, c := range b.Recorded {
		err = errors.Join(err, c.Close())
		b.forgotten[key] = c
	}
	clear(b.Recorded)
	return err
}

func (b *Size) close() error {
	err := b.forget()
	for _, l := range b.Layers {
		err = errors.Join(err, l.Close())
	}
	for _, k := range b.Kinds {
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
