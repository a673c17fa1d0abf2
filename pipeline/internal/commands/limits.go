package commands

import (
	"fmt"
	"sort"
	"strings"

	"github.com/vkmla/vkmla/pipeline/internal/layer"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Kernels read much of a step through descriptors, which hold vk.Caps.MaxStorageBufferRange bytes,
// and a buffer has vk.Caps.MaxBuffer. NewEngine checks before it allocates anything that the
// largest step and the longest session fit. Otherwise steps would fail later, when the first
// session becomes long. Partial sums, some tens of MB of a step, are left out: only built
// operations know them.

// Check demands that the kernels can take MaxStep tokens.
func (z *Sizes) Check() error {
	n := z.cfg.MaxStep
	most := sort.Search(n, func(i int) bool { return z.fits(i+1) != nil })
	switch most {
	case n:
		return nil
	case 0: // then it is not for their number
		return z.fits(1)
	}
	why := strings.TrimPrefix(z.fits(most+1).Error(), z.cfg.Op+": ")
	return &vk.ArgumentError{Op: z.cfg.Op, Arg: "MaxStep", Got: fmt.Sprint(n), Want: fmt.Sprintf("at most %d: %s", most, why)}
}

// fits returns why a step of `tokens` does not fit the device, or nil. What fits a step fits every
// smaller one.
func (z *Sizes) fits(tokens int) error {
	seen, gathers, s := map[kindKey]bool{}, false, memory.Scratch{}
	for i := range z.cfg.Layers {
		key := z.kindKey(i)
		if seen[key] {
			continue
		}
		seen[key] = true
		cfg := z.LayerConfig(i, tokens)
		cfg.Scratch = &s
		if err := layer.Check(z.cfg.Dev, cfg); err != nil {
			return err
		}
		gathers = gathers || cfg.Room(z.cfg.Dev).Rows() > 0
	}
	z.share(&s, make([]StepLayer, len(z.cfg.Layers)), tokens, gathers)
	if err := s.Fits(z.cfg.Op, z.cfg.Dev.Caps()); err != nil {
		return err
	}
	n := len(z.cfg.Layers)
	if z.OneTensor() {
		n = 1
	}
	for _, dt := range []tensor.DType{tensor.BF16, z.out()} { // inputs and outputs, see buildHidden
		var list memory.List
		for range n {
			list.Add(nil, dt, tokens, z.cfg.Model.Hidden)
		}
		if err := list.Fits(z.cfg.Op, z.cfg.Dev.Caps()); err != nil {
			return err
		}
	}
	return nil
}
