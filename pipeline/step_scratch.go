package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// stepSizes has what steps of each size need. What passes between operations of a step is scratch.
// One step is in progress at a time, so all sizes have theirs in one buffer, as large as the
// largest needs. docs/design/memory.md has the rule by which tensors of a step share it.
type stepSizes struct {
	e       *Engine
	all     map[int]*stepSize // by Step.Size
	budget  time.Duration     // see submitBudget; negative: a step is one submission, for tests
	scratch []*vk.Buffer      // each larger than those before, see place
	counted uint64            // the bytes that scratch would have, see EngineOptions.Estimate
}

// of returns what steps of a number of tokens need.
func (z *stepSizes) of(ctx context.Context, tokens int) (*stepSize, error) {
	size := z.e.size(tokens)
	if b := z.all[size]; b != nil {
		return b, nil
	}
	b := &stepSize{e: z.e, tokens: size, recorded: map[commandKey]*stepCommands{}, begins: map[bool]bool{},
		plans: map[*stepKind]*rowPlan{}}
	err := b.build(ctx)
	if err == nil {
		err = z.place(b)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("steps of %d tokens: %w", size, err), b.close())
	}
	z.all[size] = b
	return b, nil
}

// open allocates what steps of all sizes need.
func (z *stepSizes) open(ctx context.Context) error {
	if err := z.build(ctx); err != nil {
		return err
	}
	for _, b := range z.all {
		if err := b.openHost(); err != nil {
			return err
		}
	}
	return nil
}

// forget drops all recorded commands.
func (z *stepSizes) forget() (err error) {
	for _, b := range z.all {
		err = errors.Join(err, b.forget())
	}
	return errors.Join(err, z.unite(nil))
}

// close frees everything. The device is done with it.
func (z *stepSizes) close() (err error) {
	for _, b := range z.all {
		err = errors.Join(err, b.close())
	}
	for _, b := range z.scratch {
		err = errors.Join(err, b.Close())
	}
	return err
}

// place gives a size of steps its scratch. If the buffer is too small there is another one; sizes
// that have recorded commands stay in the old one, for as long as they have any.
func (z *stepSizes) place(b *stepSize) error {
	need := b.scratch.Bytes()
	if count := z.e.count; count != nil {
		more := max(need, z.counted) - z.counted
		z.counted += more
		count.in(vk.DeviceLocal).steps.Bytes += more
		return nil
	}
	if n := len(z.scratch); n == 0 || z.scratch[n-1].Size() < need {
		fresh, err := z.e.dev.NewBuffer(vk.BufferSpec{Label: "layer step", Size: need, Memory: vk.DeviceLocal})
		if err != nil {
			return err
		}
		z.scratch = append(z.scratch, fresh)
	}
	b.move(z.scratch[len(z.scratch)-1])
	return z.unite(b)
}

func (b *stepSize) move(to *vk.Buffer) {
	b.buffer = to
	b.scratch.Place(to)
}

// unite moves sizes without recorded commands to the last buffer, and frees buffers without a size.
// fresh, unless nil, is a size that is not in all yet. The size of a step in progress stays where
// it left what its other layers read.
func (z *stepSizes) unite(fresh *stepSize) (err error) {
	used := map[*vk.Buffer]bool{}
	if fresh != nil {
		used[fresh.buffer] = true
	}
	for _, b := range z.all {
		last := z.scratch[len(z.scratch)-1]
		if b.buffer != last && len(b.recorded) == 0 && (z.e.now.step == nil || z.e.now.step.b != b) {
			b.move(last)
		}
		used[b.buffer] = true
	}
	z.scratch = slices.DeleteFunc(z.scratch, func(b *vk.Buffer) bool {
		if !used[b] {
			err = errors.Join(err, b.Close())
		}
		return !used[b]
	})
	return err
}

// build makes what steps of all sizes need, and has their scratch in one buffer. Steps of the
// most tokens may take less of it than smaller ones: the scores that a selection has at a time are
// a power of two for each token, so 33 tokens have about half of those of 32.
func (z *stepSizes) build(ctx context.Context) error {
	for _, n := range slices.Backward(z.e.Sizes()) {
		if _, err := z.of(ctx, n); err != nil {
			return err
		}
	}
	if len(z.scratch) < 2 {
		return nil
	}
	return z.forget()
}

// scratchBytes returns the size of all scratch.
func (z *stepSizes) scratchBytes() (n uint64) {
	for _, b := range z.scratch {
		n += b.Size()
	}
	return n
}

// share asks for memory for what layers leave to later ones in a step of `tokens` tokens: picks of
// indexers that others read, with entries also as entries of their request, and candidates. It has
// the name of the layer that leaves it.
func (e *Engine) share(s *memory.Scratch, layers []stepLayer, tokens int, entries bool) {
	for i, l := range e.layers {
		x := &layers[i]
		if l.spec.Picks == model.PickEarlier {
			from := slices.Index(e.layers, l.picks)
			for _, to := range []*layer.PickedSlots{&x.picks, &layers[from].picks} {
				s.Add(fmt.Sprintf("slots of picks of layer %d", from), memory.Always, &to.Slots, tensor.I32, tokens, e.TopK())
				s.Add(fmt.Sprintf("numbers of picks of layer %d", from), memory.Always, &to.Lens, tensor.I32, tokens)
				if entries {
					s.Add(fmt.Sprintf("picks of layer %d", from), memory.Always, &to.TopK, tensor.I32, tokens, e.TopK())
				}
			}
		}
		if l.blocks != nil {
			from := slices.Index(e.layers, l.blocks)
			s.Add(fmt.Sprintf("candidates of layer %d", from), memory.Always, &x.blocks.Blocks, tensor.I32, tokens, e.cfg.CandidateBlocks)
			s.Add(fmt.Sprintf("numbers of candidates of layer %d", from), memory.Always, &x.blocks.Columns, tensor.I32, tokens)
		}
	}
}
