package pipeline

import (
	"math"
	"sort"

	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Kernels read much of a step through descriptors, which hold vk.Caps.MaxStorageBufferRange bytes,
// and a buffer has vk.Caps.MaxBuffer. NewEngine checks before it allocates anything that the
// largest step and the longest session fit. Otherwise steps would fail later, when the first
// session becomes long. Partial sums, some tens of MB of a step, are left out: only built
// operations know them.

// ropeRows returns the most rows of cosines and sines that can be bound.
func ropeRows(dev *vk.Device) int {
	return int(min(memory.Bound(dev)/(4*model.RopeRow), math.MaxInt32))
}

// checkStep demands that the kernels can take MaxStep tokens.
func (e *Engine) checkStep() error {
	n := e.opts.MaxStep
	most := sort.Search(n, func(i int) bool { return e.fits(i+1) != nil })
	switch most {
	case n:
		return nil
	case 0: // then it is not for their number
		return e.fits(1)
	}
	return badArgument(opNewEngine, "MaxStep", n, "at most %d: %v", most, e.fits(most+1))
}

// fits returns why a step of `tokens` does not fit the device, or nil. What fits a step fits every
// smaller one.
func (e *Engine) fits(tokens int) error {
	seen, gathers, s := map[kindKey]bool{}, false, memory.Scratch{}
	for _, l := range e.layers {
		key := l.kindKey()
		if seen[key] {
			continue
		}
		seen[key] = true
		cfg := e.kindConfig(l, tokens)
		cfg.Scratch = &s
		if err := layer.Check(e.dev, cfg); err != nil {
			return err
		}
		gathers = gathers || cfg.Room(e.dev).Rows() > 0
	}
	e.share(&s, make([]stepLayer, len(e.layers)), tokens, gathers)
	if err := s.Fits(opNewEngine, e.dev.Caps()); err != nil {
		return err
	}
	n := len(e.layers)
	if e.oneTensor() {
		n = 1
	}
	for _, dt := range []tensor.DType{tensor.BF16, e.out()} { // inputs and outputs, see buildHidden
		var list memory.List
		for range n {
			list.Add(nil, dt, tokens, e.cfg.Hidden)
		}
		if err := list.Fits(opNewEngine, e.dev.Caps()); err != nil {
			return err
		}
	}
	return nil
}
