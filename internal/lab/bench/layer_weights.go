package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// patternBytes counts the random bytes of a format; matrices are filled with
// them from different places on, over and over. The prime keeps their rows from
// repeating at distances that a wrong index might have.
const patternBytes = 4096 * 2039

// weightMaker makes layers of random weights on a device.
type weightMaker struct {
	ctx      context.Context
	dev      *vk.Device
	rng      *rand.Rand
	patterns map[projection.Format]tensor.Tensor
}

func newWeightMaker(ctx context.Context, dev *vk.Device, seed uint64) *weightMaker {
	return &weightMaker{ctx: ctx, dev: dev, rng: rand.New(rand.NewPCG(seed, 3)), patterns: map[projection.Format]tensor.Tensor{}}
}

// Close frees the patterns, not the layers.
func (m *weightMaker) Close() error {
	var err error
	for _, t := range m.patterns {
		err = errors.Join(err, t.Close())
	}
	m.patterns = nil
	return err
}

// weightSpread is the standard deviation of the codes of a format, to which a matrix's
// scale is chosen: its outputs are to be as large as its inputs.
var weightSpread = map[projection.Format]float32{projection.FormatFP8: 96, projection.FormatNVFP4: 3.1}

// pattern returns random codes of a format on the device; those of bf16 are of numbers
// with a standard deviation of 1/64, the inverse root of the usual number of inputs.
func (m *weightMaker) pattern(f projection.Format) (tensor.Tensor, error) {
	if t, ok := m.patterns[f]; ok {
		return t, nil
	}
	data := make([]byte, patternBytes)
	switch f {
	case projection.FormatBF16:
		x := make([]float32, patternBytes/2)
		verify.FillNormal(m.rng, x)
		for i := range x {
			x[i] /= 64
		}
		data = numfmt.Bytes(numfmt.BF16EncodeSlice(nil, x))
	case projection.FormatFP8:
		x := make([]float32, patternBytes)
		verify.FillNormal(m.rng, x)
		for i := range data {
			data[i] = numfmt.E4M3Encode(x[i] * weightSpread[f])
		}
	default:
		verify.FillBytes(m.rng, data)
	}
	t, err := tensor.New(m.dev, "weights", tensor.U8, patternBytes)
	if err != nil {
		return t, err
	}
	m.patterns[f] = t
	return t, t.Upload(m.ctx, data)
}

// randomLayer is a layer's weights and the memory that they are in.
type randomLayer struct {
	*model.DeviceLayer
	arena *tensor.Arena
}

func (l *randomLayer) Close() error { return l.arena.Close() }

// bytes returns what the layer's matrices take.
func (l *randomLayer) bytes() float64 {
	sum := 0.0
	for _, x := range l.matrices() {
		sum += matrixBytes(*x)
	}
	return sum
}

// matrices lists the linear layers.
func (l *randomLayer) matrices() []*model.DeviceMatrix {
	list := []*model.DeviceMatrix{&l.QKV, &l.QB, &l.OA, &l.OB}
	if c := l.Compressor; c != nil {
		list = append(list, &c.KVGate)
	}
	if x := l.Indexer; x != nil {
		list = append(list, &x.QB, &x.Weights)
		if x.Compressor != nil {
			list = append(list, &x.Compressor.KVGate)
		}
		if x.Keys != nil {
			list = append(list, &x.Keys.K)
		}
	}
	return list
}

// vector is a small tensor of normal numbers.
type vector struct {
	*tensor.Tensor
	about float32 // 1, of positional terms 0.1
}

// vectors lists the others.
func (l *randomLayer) vectors() []vector {
	list := []vector{{&l.QNorm, 1}, {&l.KVNorm, 1}, {&l.Sink, 1}}
	compressor := func(c *model.DeviceCompressor) {
		if c == nil {
			return
		}
		if list = append(list, vector{&c.Norm, 1}); c.Ape.Shape != nil {
			list = append(list, vector{&c.Ape, 0.1})
		}
	}
	compressor(l.Compressor)
	if x := l.Indexer; x != nil {
		compressor(x.Compressor)
		if x.Keys != nil {
			list = append(list, vector{&x.Keys.Norm, 1})
		}
	}
	return list
}

// matrixBytes returns what a matrix takes on the device, scales included.
func matrixBytes(x model.DeviceMatrix) float64 {
	n := float64(x.Data.Bytes())
	if !x.Scales.IsZero() {
		n += float64(x.Scales.Bytes())
	}
	return n
}

// layer makes layer i of a model, with what checkpoints quantise in a format. Its Close frees it.
func (m *weightMaker) layer(c model.Config, i int, format projection.Format) (*randomLayer, error) {
	planned, err := c.Plan(format, 1, i)
	if err != nil {
		return nil, err
	}
	p := planned[0]
	l := &randomLayer{DeviceLayer: &model.DeviceLayer{Layer: i, QKV: p.QKV, QNorm: p.QNorm, KVNorm: p.KVNorm, QB: p.QB, Sink: p.Sink,
		OA: p.OA, OB: p.OB, Compressor: p.Compressor, Indexer: p.Indexer}}
	var all []*tensor.Tensor
	for _, v := range l.vectors() {
		v.DType = tensor.F32
		all = append(all, v.Tensor)
	}
	for _, x := range l.matrices() {
		if all = append(all, &x.Data); x.Scales.Shape != nil {
			all = append(all, &x.Scales)
		}
	}
	var need uint64
	for _, t := range all {
		need += tensor.Need(t.DType, t.Shape...)
	}
	if l.arena, err = tensor.NewArena(m.dev, vk.DeviceLocal, "weights", need); err != nil {
		return nil, err
	}
	for _, t := range all {
		if err == nil {
			*t, err = l.arena.Alloc(t.DType, t.Shape...)
		}
	}
	if err == nil {
		err = m.fill(l, c.Layers[i].Unplaced)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("layer %d: %w", i, err), l.Close())
	}
	return l, nil
}

// fill brings the tensors of a layer their content.
func (m *weightMaker) fill(l *randomLayer, unplaced bool) error {
	for _, x := range l.vectors() {
		v := make([]float32, x.Len())
		for i := range v {
			v[i] = x.about + 0.1*float32(m.rng.NormFloat64())
		}
		if unplaced && x.about != 1 {
			clear(v)
		}
		if err := x.Upload(m.ctx, numfmt.Bytes(v)); err != nil {
			return err
		}
	}
	for _, x := range l.matrices() {
		if err := m.scale(x); err != nil {
			return err
		}
		if _, err := m.pattern(patternOf(x.Format)); err != nil {
			return err
		}
	}
	return run(m.ctx, m.dev, func(rec *vk.Recorder) error {
		for _, x := range l.matrices() {
			if err := m.copyPattern(rec, x.Data, patternOf(x.Format)); err != nil {
				return err
			}
		}
		return nil
	})
}

// patternOf returns the format of the codes of a matrix.
func patternOf(f projection.Format) projection.Format {
	if f == projection.FormatFP8x32 {
		return projection.FormatFP8
	}
	return f
}

// scale gives a matrix its scales, if it has any.
func (m *weightMaker) scale(x *model.DeviceMatrix) error {
	if x.Scales.IsZero() {
		return nil
	}
	scale := 1 / math.Sqrt(float64(x.K)) / float64(weightSpread[patternOf(x.Format)])
	codes := make([]byte, x.Scales.Bytes())
	for i := range codes {
		if x.Format == projection.FormatNVFP4 { // 0.5 to 2
			codes[i] = byte(0x30 + m.rng.UintN(16))
		} else { // about the scale, and different
			codes[i] = byte(127 + int(math.Round(math.Log2(scale))) + i%2)
		}
	}
	if x.Format == projection.FormatNVFP4 {
		x.Global = float32(scale)
	}
	return x.Scales.Upload(m.ctx, codes)
}

// copyPattern fills a tensor with a pattern, from some place on and from its beginning
// again and again.
func (m *weightMaker) copyPattern(rec *vk.Recorder, to tensor.Tensor, f projection.Format) error {
	from, dst := m.patterns[f].View(), to.View()
	at := uint64(m.rng.UintN(patternBytes/64)) * 64
	for done := uint64(0); done < dst.Size; {
		n := min(patternBytes-at, dst.Size-done)
		if err := rec.Copy(dst.Buffer.View(dst.Offset+done, n), from.Buffer.View(from.Offset+at, n)); err != nil {
			return err
		}
		done, at = done+n, 0
	}
	return nil
}
