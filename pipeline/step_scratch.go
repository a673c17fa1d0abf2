package pipeline

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// What passes between operations of a step is scratch, of which a lane has as much as its largest
// size of steps needs: it has one step in progress. docs/design/memory.md has the rule by which
// tensors of a step share it.

// place gives a size of steps its scratch. If the lane has too little of it, all sizes move to
// another buffer, and their commands are recorded again. The lane has no step in progress.
func (l *lane) place(b *stepSize) error {
	need := b.scratch.Bytes()
	if count := l.e.count; count != nil {
		more := max(need, l.counted) - l.counted
		l.counted += more
		count.in(vk.DeviceLocal).steps.Bytes += more
		return nil
	}
	if l.scratch != nil && need <= l.scratch.Size() {
		b.scratch.Place(l.scratch)
		return nil
	}
	fresh, err := l.e.dev.NewBuffer(vk.BufferSpec{Label: "layer step", Size: need, Memory: vk.DeviceLocal})
	if err != nil {
		return err
	}
	old := l.scratch
	l.scratch = fresh
	b.scratch.Place(fresh)
	for _, other := range l.sizes {
		err = errors.Join(err, other.forget())
		other.scratch.Place(fresh)
	}
	return errors.Join(err, old.Close())
}

// scratchBytes is how much a lane has.
func (l *lane) scratchBytes() uint64 {
	if l.scratch == nil {
		return 0
	}
	return l.scratch.Size()
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
