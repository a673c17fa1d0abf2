package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/quantise"
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
var weightSpread = map[projection.Format]float64{projection.FormatFP8: 96, projection.FormatNVFP4: 3.1}

// pattern returns random codes of a format on the device; those of bf16 are of numbers
// with a standard deviation of 1/64, the inverse root of the usual number of inputs.
func (m *weightMaker) pattern(f projection.Format) (tensor.Tensor, error) {
	if t, ok := m.patterns[f]; ok {
		return t, nil
	}
	data := make([]byte, patternBytes)
	switch f {
	case projection.FormatBF16:
		for i := 0; i < len(data); i += 2 {
			b := numfmt.BF16Encode(float32(m.rng.NormFloat64() / 64))
			data[i], data[i+1] = byte(b), byte(b>>8)
		}
	case projection.FormatFP8:
		for i := range data {
			data[i] = numfmt.E4M3Encode(float32(m.rng.NormFloat64() * weightSpread[f]))
		}
	default:
		for i := range data {
			data[i] = byte(m.rng.Uint32())
		}
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

// matrixBytes returns what a matrix takes on the device, scales included.
func matrixBytes(x model.DeviceMatrix) float64 {
	n := float64(x.Data.Bytes())
	if !x.Scales.IsZero() {
		n += float64(x.Scales.Bytes())
	}
	return n
}

// layer makes layer i of a model. Its Close frees it.
func (m *weightMaker) layer(c model.Config, i int, format projection.Format) (*randomLayer, error) {
	p := layerPlan{m: m, format: format, side: cmp.Or(c.WeightBlock, quantise.Side)}
	w := p.layer(c, i)
	var need uint64
	for _, v := range p.wanted {
		need += tensor.Need(v.dt, v.shape...)
	}
	arena, err := tensor.NewArena(m.dev, vk.DeviceLocal, "weights", need)
	if err != nil {
		return nil, err
	}
	l := &randomLayer{w, arena}
	if err := p.fill(arena); err != nil {
		return nil, errors.Join(fmt.Errorf("layer %d: %w", i, err), l.Close())
	}
	return l, nil
}

// layerPlan lists the tensors of a layer before there is memory for them.
type layerPlan struct {
	m      *weightMaker
	format projection.Format // of what checkpoints quantise
	side   int               // of blocks of FP8 with one scale
	wanted []wantedWeights
}

// wantedWeights is a tensor and what goes into it: a pattern, or given bytes.
type wantedWeights struct {
	to      *tensor.Tensor
	dt      tensor.DType
	shape   []int
	pattern projection.Format
	data    []byte
}

func (p *layerPlan) layer(c model.Config, i int) *model.DeviceLayer {
	w := &model.DeviceLayer{Layer: i}
	p.matrix(&w.QKV, p.format, c.QRank+512, c.Hidden)
	p.matrix(&w.QB, p.format, c.Heads*512, c.QRank)
	p.matrix(&w.OA, p.format, c.Groups*c.ORank, c.HeadsPerGroup()*512)
	p.matrix(&w.OB, p.format, c.Hidden, c.Groups*c.ORank)
	p.floats(&w.QNorm, 1, c.QRank)
	p.floats(&w.KVNorm, 1, 512)
	p.floats(&w.Sink, 1, c.Heads)
	spec := c.Layers[i].LayerSpec
	if spec.Compresses() {
		w.Compressor = p.compressor(&spec, cache.D, c.Hidden)
	}
	if spec.Picks == model.PickOwn {
		w.Indexer = &model.DeviceIndexer{}
		p.matrix(&w.Indexer.QB, p.format, c.IndexHeads*cache.IndexDim, c.QRank)
		p.matrix(&w.Indexer.Weights, projection.FormatBF16, c.IndexHeads, c.Hidden)
		switch {
		case spec.LatentKeys:
			w.Indexer.Keys = &model.DeviceKeys{}
			p.matrix(&w.Indexer.Keys.K, projection.FormatBF16, cache.IndexDim, cache.D)
			p.floats(&w.Indexer.Keys.Norm, 1, cache.IndexDim)
		case spec.Compresses():
			w.Indexer.Compressor = p.compressor(&spec, cache.IndexDim, c.Hidden)
		}
	}
	return w
}

func (p *layerPlan) compressor(spec *model.LayerSpec, dim, hidden int) *model.DeviceCompressor {
	w, c := &model.DeviceCompressor{}, spec.Compression(dim)
	p.matrix(&w.KVGate, projection.FormatBF16, c.Columns(), hidden)
	if spec.Gated() {
		p.floats(&w.Ape, 0.1, c.Ratio, c.Channels())
		if spec.Unplaced {
			clear(p.wanted[len(p.wanted)-1].data)
		}
	}
	p.floats(&w.Norm, 1, c.Dim)
	return w
}

func (p *layerPlan) matrix(x *model.DeviceMatrix, f projection.Format, n, k int) {
	pattern, scale := f, 1/math.Sqrt(float64(k))/weightSpread[f]
	if f == projection.FormatFP8 && p.side != quantise.Side {
		f = projection.FormatFP8x32
	}
	*x = model.DeviceMatrix{Format: f, N: n, K: k}
	is := f.Shapes(n, k)
	p.wanted = append(p.wanted, wantedWeights{to: &x.Data, dt: is.Data.DType, shape: is.Data.Shape, pattern: pattern})
	if is.Scale.Shape == nil {
		return
	}
	codes := make([]byte, is.Scale.Bytes())
	for i := range codes {
		if f == projection.FormatNVFP4 { // 0.5 to 2
			codes[i] = byte(0x30 + p.m.rng.UintN(16))
		} else { // about the scale, and different
			codes[i] = byte(127 + int(math.Round(math.Log2(scale))) + i%2)
		}
	}
	if f == projection.FormatNVFP4 {
		x.Global = float32(scale)
	}
	p.wanted = append(p.wanted, wantedWeights{to: &x.Scales, dt: is.Scale.DType, shape: is.Scale.Shape, data: codes})
}

// floats are normal numbers; those of norms and sinks about 1.
func (p *layerPlan) floats(x *tensor.Tensor, about float32, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = about + 0.1*float32(p.m.rng.NormFloat64())
	}
	p.wanted = append(p.wanted, wantedWeights{to: x, dt: tensor.F32, shape: shape, data: bytesOf(v)})
}

// fill allocates the tensors and brings them their content.
func (p *layerPlan) fill(arena *tensor.Arena) error {
	var filled []wantedWeights
	for _, v := range p.wanted {
		var err error
		if *v.to, err = arena.Alloc(v.dt, v.shape...); err != nil {
			return err
		}
		if v.data != nil {
			if err := v.to.Upload(p.m.ctx, v.data); err != nil {
				return err
			}
			continue
		}
		if _, err := p.m.pattern(v.pattern); err != nil {
			return err
		}
		filled = append(filled, v)
	}
	return run(p.m.ctx, p.m.dev, func(rec *vk.Recorder) error {
		for _, v := range filled {
			if err := p.m.copyPattern(rec, *v.to, v.pattern); err != nil {
				return err
			}
		}
		return nil
	})
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
