package layer

import (
	"errors"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// linear is a linear layer with its weights.
type linear struct {
	op      *projection.Linear
	w       projection.LinearWeights
	scratch tensor.Tensor

	codes, scales tensor.Tensor // of an input with fewer bits; absent: it is bf16
}

// args are those of the operation, which takes codes instead of from where there are any.
func (x *linear) args(from, to tensor.Tensor) projection.LinearArgs {
	a := projection.LinearArgs{X: from, W: x.w, Out: to, Scratch: x.scratch}
	if !x.codes.IsZero() {
		a.X, a.XScale = x.codes, x.scales
	}
	return a
}

func (x *linear) record(rec *vk.Recorder, from, to tensor.Tensor) error {
	return x.op.Record(rec, x.args(from, to))
}

// linears are the operations that layers of a kind share, and their scratch. Linear layers of
// different names have scratch of their own, so that one does not wait for the other.
type linears struct {
	ops     map[projection.LinearConfig]*projection.Linear
	scratch map[string]tensor.Tensor // for as much as was needed so far
	old     []tensor.Tensor          // scratch that became too small; commands may use it yet
}

// get returns the operation of a configuration, and scratch for it.
func (x *linears) get(k *Kind, name string, cfg projection.LinearConfig) (*projection.Linear, tensor.Tensor, error) {
	op := x.ops[cfg]
	if op == nil {
		var err error
		if op, err = projection.NewLinear(k.dev, cfg); err != nil {
			return nil, tensor.Tensor{}, err
		}
		if x.ops == nil {
			x.ops, x.scratch = map[projection.LinearConfig]*projection.Linear{}, map[string]tensor.Tensor{}
		}
		x.ops[cfg] = op
	}
	n := op.ScratchLen(cfg.MaxTokens)
	have, there := x.scratch[name]
	if n == 0 || there && n <= have.Len() {
		return op, have, nil
	}
	fresh, err := k.cfg.Count.Tensor(k.dev, label, tensor.F32, n)
	if err != nil {
		return nil, tensor.Tensor{}, err
	}
	if there {
		x.old = append(x.old, have)
	}
	x.scratch[name] = fresh
	return op, fresh, nil
}

// memory lists all scratch.
func (x *linears) memory() []tensor.Tensor {
	list := x.old
	for _, t := range x.scratch {
		list = append(list, t)
	}
	return list
}

func (x *linears) bytes() (n uint64) {
	for _, t := range x.memory() {
		n += t.Bytes()
	}
	return n
}

func (x *linears) close() (err error) {
	for _, t := range x.memory() {
		err = errors.Join(err, t.Close())
	}
	x.scratch, x.old = nil, nil
	return err
}

// smallBlock is the side of blocks of FP8 that are not projection.ScaleBlock's.
const smallBlock = 32

// weightFormat translates how a checkpoint stores a matrix into what multiplies with it.
func weightFormat(m model.DeviceMatrix) projection.WeightFormat {
	switch {
	case m.Format == model.FormatFP8 && m.ScaleF32:
		return projection.WeightFP8
	case m.Format == model.FormatFP8 && m.Block == smallBlock:
		return projection.WeightFP8UE8M0x32
	case m.Format == model.FormatFP8:
		return projection.WeightFP8UE8M0
	case m.Format == model.FormatNVFP4:
		return projection.WeightNVFP4
	case m.Format == model.FormatFP8Rows:
		return projection.WeightFP8Rows
	}
	return projection.WeightBF16
}

// linearRows rounds up to what the outputs of a linear layer are a multiple of.
func linearRows(n int) int {
	const step = 8
	return (n + step - 1) / step * step
}
