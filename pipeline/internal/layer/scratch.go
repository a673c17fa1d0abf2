package layer

import (
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/tensor"
)

// The parts of a layer, which say when scratch is in use. All kinds of layers have the same names
// for it, and so the same places; names that no part uses both share bytes. docs/design/memory.md
// has the rule, and why no barrier comes of it.
const (
	edges     memory.Use = 1 << iota // the first products, and beside them all that follows an earlier layer's attention
	picking                          // between both
	attending                        // the attention
)

// use says when an op is.
func (o op) use() memory.Use {
	switch o {
	case codesHidden, wqaWkv, wgate, wgateFirst, indexWgate, weightsProj, userCommands, inputSums:
		return edges
	case attend:
		return attending
	case inverseRope, codesO, woA, codesOLoRA, woB, woAB:
		return edges
	}
	return picking
}

// enter tells what watches scratch that the layer is about to use some of it.
func (r *recording) enter(now memory.Use) error {
	if enter := r.k.cfg.Scratch.Enter; enter != nil {
		return enter(r.rec, now)
	}
	return nil
}

// scratch lists tensors of a kind of layers.
type scratch struct {
	*memory.Scratch
	kind string
}

// step wants a tensor that a step writes once, for all layers of the kind.
func (s scratch) step(name string, to *tensor.Tensor, dt tensor.DType, shape ...int) {
	s.Add(s.kind+", "+name, memory.Always, to, dt, shape...)
}
