package measure

import (
	"context"
	"encoding/binary"
	"math/rand/v2"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// trial is the operation by which a package's builds are judged.
type trial struct {
	pkg    string // as tuning.Choice names it
	ladder []vk.Variant
	inputs func(dev *vk.Device, s sizes) (*inputs, error)
	record func(dev *vk.Device, rec *vk.Recorder, in *inputs, build string) error
}

// inputs are the tensors of a trial.
type inputs struct {
	arena   *tensor.Arena
	x, y    tensor.Tensor // activations or queries; weights or rows
	indices tensor.Tensor
	out     tensor.Tensor
}

func (in *inputs) close() { _ = in.arena.Close() }

// trials are a product of bf16 weights as large as prompts make it, and attention to gathered rows.
func trials() []trial {
	return []trial{
		{"projection", projection.LinearVariants, linearInputs, func(dev *vk.Device, rec *vk.Recorder, in *inputs, build string) error {
			op, err := projection.NewLinear(dev, projection.LinearConfig{N: in.y.Shape[0], K: in.y.Shape[1], Weights: projection.WeightBF16,
				Out: tensor.BF16, Variant: build, OnDemand: true})
			if err != nil {
				return err
			}
			return op.Record(rec, projection.LinearArgs{X: in.x, W: projection.LinearWeights{Data: in.y}, Out: in.out})
		}},
		{"attention", attention.PrefillVariants, attentionInputs, func(dev *vk.Device, rec *vk.Recorder, in *inputs, build string) error {
			op, err := attention.NewPrefill(dev, attention.PrefillConfig{Heads: in.x.Shape[1], Splits: 1, Variant: build, OnDemand: true})
			if err != nil {
				return err
			}
			return op.Record(rec, attention.PrefillArgs{Q: in.x, KV: in.y, Indices: in.indices, Out: in.out})
		}},
	}
}

func linearInputs(dev *vk.Device, s sizes) (*inputs, error) {
	in := &inputs{}
	var list memory.List
	list.Add(&in.x, tensor.BF16, s.tokens, s.rows)
	list.Add(&in.y, tensor.BF16, s.rows, s.rows)
	list.Add(&in.out, tensor.BF16, s.tokens, s.rows)
	return in, in.fill(dev, list)
}

func attentionInputs(dev *vk.Device, s sizes) (*inputs, error) {
	in, t, width := &inputs{}, s.tokens/4, s.rows/8
	var list memory.List
	list.Add(&in.x, tensor.BF16, t, s.heads, attention.D)
	list.Add(&in.y, tensor.BF16, s.rows, attention.D)
	list.Add(&in.indices, tensor.I32, t, width)
	list.Add(&in.out, tensor.BF16, t, s.heads, attention.D)
	if err := in.fill(dev, list); err != nil {
		return nil, err
	}
	data := make([]byte, in.indices.Bytes())
	for i := range in.indices.Len() {
		binary.LittleEndian.PutUint32(data[4*i:], uint32(i*29%s.rows))
	}
	return in, in.orClose(in.indices.Upload(context.Background(), data))
}

// fill allocates the tensors and gives x and y numbers of a normal distribution, always the same.
func (in *inputs) fill(dev *vk.Device, list memory.List) (err error) {
	if in.arena, err = list.Allocate(dev, vk.DeviceLocal, "timed builds"); err != nil {
		return in.orClose(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, t := range []tensor.Tensor{in.x, in.y} {
		data := make([]byte, t.Bytes())
		for i := range t.Len() {
			binary.LittleEndian.PutUint16(data[2*i:], numfmt.BF16Encode(float32(rng.NormFloat64())))
		}
		if err := t.Upload(context.Background(), data); err != nil {
			return in.orClose(err)
		}
	}
	return nil
}

func (in *inputs) orClose(err error) error {
	if err != nil {
		in.close()
	}
	return err
}
