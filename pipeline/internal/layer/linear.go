package layer

import (
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// linear is a linear layer with its weights.
type linear struct {
	op      *projection.Linear
	w       projection.LinearWeights
	scratch tensor.Tensor

	coded *coded // an input with fewer bits; nil: it is bf16
}

// args are those of the operation, which takes codes instead of from where there are any.
func (x *linear) args(from, to tensor.Tensor) projection.LinearArgs {
	a := projection.LinearArgs{X: from, W: x.w, Out: to, Scratch: x.scratch}
	if x.coded != nil {
		a.X, a.XScale = x.coded.codes, x.coded.scales
	}
	return a
}

func (x *linear) record(rec *vk.Recorder, from, to tensor.Tensor) error {
	return x.op.Record(rec, x.args(from, to))
}

// linear returns the operation of a configuration, which layers of a kind share.
func (k *Kernels) linear(cfg projection.LinearConfig) (*projection.Linear, error) {
	op := k.linears[cfg]
	if op == nil {
		var err error
		if op, err = projection.NewLinear(k.dev, cfg); err != nil {
			return nil, err
		}
		k.linears[cfg] = op
	}
	return op, nil
}

// partsUse says when parts of a product's sums are in use. Each product has them by its name, so
// that none waits for another.
func (u *use) partsUse() memory.Use {
	switch u.from {
	case fromHidden:
		return edges | picking // sums are beside what follows the products
	case fromO, fromOLoRA:
		return edges
	}
	return picking
}

// linearRows rounds up to what the outputs of a linear layer are a multiple of.
func linearRows(n int) int {
	const step = 8
	return (n + step - 1) / step * step
}
