package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// What passes between operations of a step is scratch. A lane has one step in progress, so all its
// sizes of steps have theirs in one buffer, as large as the largest needs. docs/design/memory.md
// has the rule by which tensors of a step share it.

// place gives a size of steps its scratch. If the lane's buffer is too small it gets another one;
// sizes that have recorded commands stay in the old one, for as long as they have any.
func (l *lane) place(b *stepSize) error {
	need := b.scratch.Bytes()
	if count := l.e.count; count != nil {
		more := max(need, l.counted) - l.counted
		l.counted += more
		count.in(vk.DeviceLocal).steps.Bytes += more
		return nil
	}
	if n := len(l.scratch); n == 0 || l.scratch[n-1].Size() < need {
		fresh, err := l.e.dev.NewBuffer(vk.BufferSpec{Label: "layer step", Size: need, Memory: vk.DeviceLocal})
		if err != nil {
			return err
		}
		l.scratch = append(l.scratch, fresh)
	}
	b.move(l.scratch[len(l.scratch)-1])
	return l.unite(b)
}

func (b *stepSize) move(to *vk.Buffer) {
	b.buffer = to
	b.scratch.Place(to)
}

// unite moves sizes without recorded commands to the lane's last buffer, and frees buffers of which
// there are none left. fresh, unless nil, is a size that is not the lane's yet. A step in progress
// stays where it left what its other layers read.
func (l *lane) unite(fresh *stepSize) (err error) {
	used := map[*vk.Buffer]bool{}
	if fresh != nil {
		used[fresh.buffer] = true
	}
	for _, b := range l.sizes {
		last := l.scratch[len(l.scratch)-1]
		if b.buffer != last && len(b.recorded) == 0 && (l.step == nil || l.step.b != b) {
			b.move(last)
		}
		used[b.buffer] = true
	}
	l.scratch = slices.DeleteFunc(l.scratch, func(b *vk.Buffer) bool {
		if !used[b] {
			err = errors.Join(err, b.Close())
		}
		return !used[b]
	})
	return err
}

// buildAll makes what steps of all sizes need, and has their scratch in one buffer. Steps of the
// most tokens may take less of it than smaller ones: the scores that a selection has at a time are
// a power of two for each token, so 33 tokens have about half of those of 32.
func (l *lane) buildAll(ctx context.Context) error {
	for _, n := range slices.Backward(l.e.allSizes()) {
		if _, err := l.stepSize(ctx, n); err != nil {
			return err
		}
	}
	if len(l.scratch) < 2 {
		return nil
	}
	return l.forget()
}

// scratchBytes is how much a lane has.
func (l *lane) scratchBytes() (n uint64) {
	for _, b := range l.scratch {
		n += b.Size()
	}
	return n
}

// share wants memory for what layers leave to later ones of a step of so many tokens: picks of
// indexers that others read, with entries also as entries of their request, and candidates. It has
// the name of the layer that leaves it.
func (e *Engine) share(s *memory.Scratch, layers []stepLayer, tokens int, entries bool) {
	for i, l := range e.layers {
		x := &layers[i]
		if l.spec.Picks == model.PickEarlier {
			from := slices.Index(e.layers, l.picks)
			for _, to := range []*layer.Picks{&x.picks, &layers[from].picks} {
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
