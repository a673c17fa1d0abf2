package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Sizes has what steps of each size need. What passes between operations of a step is scratch.
// One step is in progress at a time, so all sizes have theirs in one buffer, as large as the
// largest needs. docs/design/memory.md has the rule by which tensors of a step share it.
type Sizes struct {
	All    map[int]*Size // by Size.Tokens
	InUse  *Size         // of the step in progress
	Budget time.Duration // see submitBudget; negative: a step is one submission, for tests

	Recorded  uint64        // times that commands were recorded
	Recording time.Duration // what that took

	cfg       Config
	update    *cache.TableUpdate
	workspace tensor.Tensor // of gathered rows, see gatherRows
	scratch   []*vk.Buffer  // each larger than those before, see place
	counted   uint64        // the bytes that scratch would have, where they are counted
}

// New makes no size yet.
func New(cfg Config) *Sizes {
	return &Sizes{cfg: cfg, All: map[int]*Size{}, Budget: submitBudget}
}

// Of returns what steps of a number of tokens need.
func (z *Sizes) Of(ctx context.Context, tokens int) (b *Size, err error) {
	size := z.SizeOf(tokens)
	if b := z.All[size]; b != nil {
		return b, nil
	}
	if z.update == nil && z.cfg.Count == nil {
		if z.update, err = cache.NewTableUpdate(z.cfg.Dev); err != nil {
			return nil, err
		}
	}
	b = &Size{z: z, Tokens: size, Recorded: map[Key]*Commands{}, forgotten: map[Key]*Commands{}, begins: map[bool]bool{},
		plans: map[*Kind]*rowPlan{}}
	if err = b.build(ctx); err == nil {
		err = z.place(b)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("steps of %d tokens: %w", size, err), b.close())
	}
	z.All[size] = b
	return b, nil
}

// Open allocates what steps of all sizes need.
func (z *Sizes) Open(ctx context.Context) error {
	if err := z.Build(ctx); err != nil {
		return err
	}
	for _, b := range z.All {
		if err := b.OpenHost(); err != nil {
			return err
		}
	}
	return nil
}

// Forget drops all recorded commands.
func (z *Sizes) Forget() (err error) {
	for _, b := range z.All {
		err = errors.Join(err, b.forget())
	}
	return errors.Join(err, z.unite(nil))
}

// Close frees everything. The device is done with it.
func (z *Sizes) Close() (err error) {
	for _, b := range z.All {
		err = errors.Join(err, b.close())
	}
	for _, b := range z.scratch {
		err = errors.Join(err, b.Close())
	}
	return errors.Join(err, z.workspace.Close())
}

// place gives a size of steps its scratch. If the buffer is too small there is another one; sizes
// that have recorded commands stay in the old one, for as long as they have any.
func (z *Sizes) place(b *Size) error {
	need := b.Scratch.Bytes()
	if count := z.cfg.Count; count != nil {
		more := max(need, z.counted) - z.counted
		z.counted += more
		count.in(vk.DeviceLocal).steps.Bytes += more
		return nil
	}
	if n := len(z.scratch); n == 0 || z.scratch[n-1].Size() < need {
		fresh, err := z.cfg.Dev.NewBuffer(vk.BufferSpec{Label: "layer step", Size: need, Memory: vk.DeviceLocal})
		if err != nil {
			return err
		}
		z.scratch = append(z.scratch, fresh)
	}
	b.move(z.scratch[len(z.scratch)-1])
	return z.unite(b)
}

func (b *Size) move(to *vk.Buffer) {
	b.Buffer = to
	b.Scratch.Place(to)
}

// unite moves sizes without recorded commands to the last buffer, and frees buffers without a size.
// fresh, unless nil, is a size that is not in all yet. The size of a step in progress stays where
// it left what its other layers read.
func (z *Sizes) unite(fresh *Size) (err error) {
	used := map[*vk.Buffer]bool{}
	if fresh != nil {
		used[fresh.Buffer] = true
	}
	for _, b := range z.All {
		last := z.scratch[len(z.scratch)-1]
		if b.Buffer != last && len(b.Recorded) == 0 && z.InUse != b {
			b.move(last)
		}
		used[b.Buffer] = true
	}
	z.scratch = slices.DeleteFunc(z.scratch, func(b *vk.Buffer) bool {
		if !used[b] {
			err = errors.Join(err, b.Close())
		}
		return !used[b]
	})
	return err
}

// Build makes what steps of all sizes need, and has their scratch in one buffer. Steps of the
// most tokens may take less of it than smaller ones: the scores that a selection has at a time are
// a power of two for each token, so 33 tokens have about half of those of 32.
func (z *Sizes) Build(ctx context.Context) error {
	for _, n := range slices.Backward(z.List()) {
		if _, err := z.Of(ctx, n); err != nil {
			return err
		}
	}
	if len(z.scratch) < 2 {
		return nil
	}
	return z.Forget()
}

// Bytes returns the memory of steps, of hidden states, what of both is the host's, and that of
// gathered rows.
func (z *Sizes) Bytes() (steps, hidden, host, workspace uint64) {
	for _, b := range z.scratch {
		steps += b.Size()
	}
	for _, b := range z.All {
		s, h, m := b.bytes()
		steps, hidden, host = steps+s, hidden+h, host+m
	}
	return steps, hidden, host, z.workspace.Bytes()
}

// List returns the numbers of rows that steps are padded to: 1, 2, 4 and so on, and MaxStep.
func (z *Sizes) List() (list []int) {
	for n := 1; n < z.cfg.MaxStep; n *= 2 {
		list = append(list, n)
	}
	return append(list, z.cfg.MaxStep)
}

// share asks for memory for what layers leave to later ones in a step of `tokens` tokens: picks of
// indexers that others read, with entries also as entries of their request, and candidates. It has
// the name of the layer that leaves it.
func (z *Sizes) share(s *memory.Scratch, layers []StepLayer, tokens int, entries bool) {
	for i, l := range z.cfg.Layers {
		x := &layers[i]
		if l.Spec.Picks == model.PickEarlier {
			from := l.Picks
			for _, to := range []*layer.PickedSlots{&x.picks, &layers[from].picks} {
				s.Add(fmt.Sprintf("slots of picks of layer %d", from), memory.Always, &to.Slots, tensor.I32, tokens, z.cfg.Model.TopK)
				s.Add(fmt.Sprintf("numbers of picks of layer %d", from), memory.Always, &to.Lens, tensor.I32, tokens)
				if entries {
					s.Add(fmt.Sprintf("picks of layer %d", from), memory.Always, &to.TopK, tensor.I32, tokens, z.cfg.Model.TopK)
				}
			}
		}
		if from := l.Blocks; from >= 0 {
			s.Add(fmt.Sprintf("candidates of layer %d", from), memory.Always, &x.blocks.Blocks, tensor.I32, tokens,
				z.cfg.Model.CandidateBlocks)
			s.Add(fmt.Sprintf("numbers of candidates of layer %d", from), memory.Always, &x.blocks.Columns, tensor.I32, tokens)
		}
	}
}
