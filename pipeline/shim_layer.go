package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// WholeLayerArgs are the inputs and outputs of one layer. Out must not overlap Hidden.
type WholeLayerArgs struct {
	Hidden tensor.Tensor // [T, Hidden] bf16, after the layer's own input norm
	CosSin tensor.Tensor // [rows, 64] f32, Rope.Table(rows, 1) of the layer's rotation; a position beyond the last row counts as it
	Caches LayerCaches   // written, then read
	Out    tensor.Tensor // [T, Hidden] of LayerKindConfig.Out, written; undefined for padding tokens
}

// Layer is the whole attention of one layer of a model, from hidden states to hidden
// states, for the steps of a LayerKind:
//
//	qr | kv = norms of Hidden . [wq_a; wkv]
//	q       = heads of qr . wq_b, normed and turned; kv turned, quantised and stored
//	o       = sparse attention (see Sparse), with what the compressor and the indexer
//	          make of Hidden and qr
//	Out     = (o turned back, by groups . wo_a) . wo_b, see OutputPath
//
// Weights are used in the format that they are stored in. Activations between the
// operations are bf16, but the compressors' inputs, which are f32; sums are f32.
//
// Source: vLLM vllm/models/deepseek_v4/attention.py; DeepSeek's inference/model.py.
type Layer struct {
	kind *LayerKind
	w    *model.DeviceLayer
	rows tensor.Tensor // factors of the rows of NVFP4 weights, absent if there are none
	wide tensor.Tensor // the indexer's weights_proj with rows of zeros below, absent if it needs none

	insert *projection.QInsert
	norm   *projection.QKVNorm // nil where norms are part of other operations: see normed

	qkv, qb, oa, ob        layerLinear
	chain                  *projection.LinearChain // wo_a and wo_b in one launch; nil if they are two
	kvGate                 layerLinear             // not with RatioWindow
	idxQB, idxW, idxKVGate layerLinear             // RatioC4A only
}

// layerLinear is a linear layer with its weights.
type layerLinear struct {
	op      *projection.Linear
	w       projection.LinearWeights
	scratch tensor.Tensor
}

// use is a linear layer that a kind of layer has: what its matrix has to be and where
// the operation goes.
type use struct {
	to           *layerLinear
	name         string
	m            model.DeviceMatrix
	n, k, groups int // outputs and inputs, of a group
	out          tensor.DType
	x            projection.ActivationFormat // ActivationBF16 but for OA
	norm         tensor.Tensor               // weights of a norm of the first QRank outputs
}

// NewLayer makes a layer of weights on the device, which it uses but does not own: they
// have to stay until the layer is closed. It builds the kernels for the formats of its
// weights that no layer of the kind had before. The caller closes the layer.
//
// Errors: vk.ErrArgument for weights of another ratio, of shapes that the kind's
// configuration does not have, or a wo_a that its Output cannot take; vk.ErrClosed for a
// kind or weights that were closed; those of projection.NewLinear and of tensor.New.
func (k *LayerKind) NewLayer(ctx context.Context, w *model.DeviceLayer) (*Layer, error) {
	if k == nil || k.arena == nil {
		return nil, fmt.Errorf("%s: layer kind %w", opNewLayer, vk.ErrClosed)
	}
	c := &checker{op: opNewLayer, dev: k.dev}
	k.checkWeights(c, w)
	if c.err != nil {
		return nil, c.err
	}
	l := &Layer{kind: k, w: w}
	uses := l.uses()
	for _, u := range uses {
		if got := u.m; got.N != u.n*u.groups || got.K != u.k {
			c.bad(u.name, fmt.Sprintf("[%d, %d]", got.N, got.K), "[%d, %d]", u.n*u.groups, u.k)
		}
	}
	if c.err != nil {
		return nil, c.err
	}
	err := l.factors(ctx, uses)
	if err == nil {
		err = l.widen(ctx, uses)
	}
	for _, u := range uses {
		if err != nil {
			break
		}
		if u.to.op, u.to.scratch, err = k.linear(u.name, projection.LinearConfig{
			N: u.n, K: u.k, Groups: u.groups, Weights: weightFormat(u.m), Activations: u.x, Out: u.out, MaxTokens: k.cfg.Tokens,
			Norm: u.norm.DType, NormColumns: u.normColumns(k), NormEps: u.eps(k)}); err != nil {
			err = fmt.Errorf("%s: %w", u.name, err)
		}
		u.to.w.Data, u.to.w.Scale = u.m.Data, u.m.Scales
	}
	if err == nil {
		l.chain, err = k.chain(ctx, l.oa.op, l.ob.op)
	}
	if err == nil {
		err = l.normed()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s %d: %w", opNewLayer, w.Layer, err), l.Close())
	}
	return l, nil
}

func (k *LayerKind) checkWeights(c *checker, w *model.DeviceLayer) {
	switch ratio := k.cfg.Ratio; {
	case w == nil:
		c.bad("w", "nil", "the weights of a layer")
	case w.Closed():
		c.err = fmt.Errorf("%s: weights of layer %d %w", opNewLayer, w.Layer, vk.ErrClosed)
	case (w.Compressor != nil) != (ratio != RatioWindow) || (w.Indexer != nil) != (ratio == RatioC4A):
		c.bad("w", fmt.Sprintf("the weights of layer %d", w.Layer), "those of a layer of ratio %d", ratio)
	case k.cfg.Output != OutputBF16 && w.OA.Format != model.FormatFP8:
		c.bad("w.OA.Format", w.OA.Format, "fp8, which LayerKindConfig.Output %v multiplies with", k.cfg.Output)
	default:
		c.bound("w.Sink", w.Sink, tensor.F32, k.heads)
	}
}

// uses lists the linear layers of l.
func (l *Layer) uses() []use {
	k, w, m := l.kind, l.w, l.kind.cfg.Model
	var none, qNorm tensor.Tensor
	if k.cfg.Tokens <= normTokens {
		qNorm = w.QNorm
	}
	list := []use{
		{&l.qkv, "QKV", w.QKV, m.QRank + model.HeadDim, m.Hidden, 1, tensor.BF16, 0, qNorm},
		{&l.qb, "QB", w.QB, k.heads * model.HeadDim, m.QRank, 1, tensor.BF16, 0, none},
		{&l.oa, "OA", w.OA, m.ORank, m.HeadsPerGroup() * model.HeadDim, k.groups, tensor.BF16, k.cfg.Output.format(), none},
		{&l.ob, "OB", w.OB, m.Hidden, k.groups * m.ORank, 1, k.cfg.Out, 0, none},
	}
	if c := w.Compressor; c != nil {
		list = append(list, use{&l.kvGate, "Compressor.KVGate", c.KVGate, 2 * channels(k.cfg.Ratio, model.HeadDim), m.Hidden, 1, tensor.F32, 0, none})
	}
	if x := w.Indexer; x != nil {
		list = append(list,
			use{&l.idxQB, "Indexer.QB", x.QB, m.IndexHeads * model.IndexDim, m.QRank, 1, tensor.BF16, 0, none},
			use{&l.idxW, "Indexer.Weights", x.Weights, m.IndexHeads, m.Hidden, 1, tensor.BF16, 0, none},
			use{&l.idxKVGate, "Indexer.Compressor.KVGate", x.Compressor.KVGate, 2 * channels(k.cfg.Ratio, model.IndexDim), m.Hidden, 1, tensor.F32, 0, none})
	}
	return list
}

func (u use) eps(k *LayerKind) float32 {
	if u.norm.IsZero() {
		return 0
	}
	return k.cfg.Model.Eps
}

func (u use) normColumns(k *LayerKind) int {
	if u.norm.IsZero() {
		return 0
	}
	return k.cfg.Model.QRank
}

// normed settles where the norms are: that of the bottleneck in wq_a|wkv, where that is to be and
// it has a kernel that can, and that of KV rows in their insertion; or both in a launch.
func (l *Layer) normed() (err error) {
	k := l.kind
	if l.insert, err = k.inserter(l.kvNorm().DType); err == nil && !l.norms() {
		l.norm, err = k.norms()
	}
	return err
}

// norms tells whether wq_a|wkv norms the bottleneck and the insertion KV rows.
func (l *Layer) norms() bool { return l.qkv.op.Norms(l.kind.cfg.Tokens) }

// kvNorm are the weights with which the insertion norms KV rows, absent if it does not.
func (l *Layer) kvNorm() tensor.Tensor {
	if l.norms() {
		return l.w.KVNorm
	}
	return tensor.Tensor{}
}

func weightFormat(m model.DeviceMatrix) projection.WeightFormat {
	switch {
	case m.Format == model.FormatFP8 && m.ScaleF32:
		return projection.WeightFP8
	case m.Format == model.FormatFP8:
		return projection.WeightFP8UE8M0
	case m.Format == model.FormatNVFP4:
		return projection.WeightNVFP4
	}
	return projection.WeightBF16
}

// factors puts the one factor of each NVFP4 matrix on the device, for every row, as
// the kernels take it.
func (l *Layer) factors(ctx context.Context, uses []use) error {
	var data []byte
	begin := make([]int, len(uses))
	const align = tensor.Align / 4 // rows
	for i, u := range uses {
		begin[i] = len(data) / 4
		if u.m.Format != model.FormatNVFP4 {
			continue
		}
		for range (u.m.N + align - 1) / align * align {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(u.m.Global))
		}
	}
	if len(data) == 0 {
		return nil
	}
	var err error
	if l.rows, err = tensor.New(l.kind.dev, fmt.Sprintf("weights of layer %d", l.w.Layer), tensor.F32, len(data)/4); err != nil {
		return err
	}
	for i, u := range uses {
		if u.m.Format == model.FormatNVFP4 {
			u.to.w.RowScale = l.rows.Rows(begin[i], begin[i]+u.m.N)
		}
	}
	return l.rows.Upload(ctx, data)
}

// linearStep is what the outputs of a linear layer are a multiple of.
const linearStep = 8

func linearRows(n int) int { return (n + linearStep - 1) / linearStep * linearStep }

// widen gives weights_proj of a number of heads that no kernel has more rows, of zeros.
// Models that are in use have 64 heads; it serves small ones.
func (l *Layer) widen(ctx context.Context, uses []use) error {
	for i := range uses {
		u := &uses[i]
		n := linearRows(u.n)
		if u.to != &l.idxW || n == u.n || u.m.Format != model.FormatBF16 {
			continue
		}
		var err error
		if l.wide, err = tensor.New(l.kind.dev, fmt.Sprintf("weights of layer %d", l.w.Layer), tensor.BF16, n, u.k); err != nil {
			return err
		}
		rec, err := l.kind.dev.NewRecorder()
		if err != nil {
			return err
		}
		defer rec.Close()
		if err := errors.Join(rec.Fill(l.wide.View(), 0), rec.Copy(l.wide.Rows(0, u.n).View(), u.m.Data.View())); err != nil {
			return err
		}
		cmd, err := rec.End()
		if err != nil {
			return err
		}
		if err := errors.Join(cmd.Run(ctx), cmd.Close()); err != nil {
			return err
		}
		u.n, u.m.Data = n, l.wide
	}
	return nil
}

// recordWeights records the indexer's weights of heads.
func (l *Layer) recordWeights(rec *vk.Recorder, hidden tensor.Tensor) error {
	k := l.kind
	if l.wide.IsZero() {
		return l.idxW.record(rec, hidden, k.iw)
	}
	if err := l.idxW.record(rec, hidden, k.iwWide); err != nil {
		return err
	}
	to, from, row := k.iw.View(), k.iwWide.View(), uint64(2*k.cfg.Model.IndexHeads)
	for t := range uint64(k.cfg.Tokens) {
		pitch := uint64(2 * k.iwWide.Shape[1])
		if err := rec.Copy(to.Buffer.View(to.Offset+t*row, row), from.Buffer.View(from.Offset+t*pitch, row)); err != nil {
			return err
		}
	}
	return nil
}

// Close frees what the layer has beside its weights and its kind; closing again does
// nothing. Recording afterwards gives vk.ErrClosed.
func (l *Layer) Close() error {
	if l == nil || l.kind == nil {
		return nil
	}
	l.kind = nil
	return errors.Join(l.rows.Close(), l.wide.Close())
}

// Record records the layer, after LayerKind.RecordStep with the same step in the same
// or an earlier submission. Operations that do not depend on each other are recorded
// side by side, with no barrier between them.
//
// Errors: vk.ErrArgument, vk.ErrClosed, with nothing recorded.
func (l *Layer) Record(rec *vk.Recorder, step SparseStepArgs, a WholeLayerArgs) error {
	return l.recordBeside(rec, step, a, nil)
}

// recordBeside is Record; beside, unless nil, records something of its own behind the layer's
// first products, which nothing in front of it waits for.
func (l *Layer) recordBeside(rec *vk.Recorder, step SparseStepArgs, a WholeLayerArgs, beside func(*vk.Recorder) error) error {
	if l == nil || l.kind == nil || l.kind.arena == nil {
		return fmt.Errorf("%s: layer %w", opWholeLayer, vk.ErrClosed)
	}
	if l.w.Closed() {
		return fmt.Errorf("%s: weights of layer %d %w", opWholeLayer, l.w.Layer, vk.ErrClosed)
	}
	k := l.kind
	c := &checker{op: opWholeLayer, dev: k.dev}
	t, width := k.cfg.Tokens, k.cfg.Model.Hidden
	c.bound("Hidden", a.Hidden, tensor.BF16, t, width)
	c.bound("Out", a.Out, k.cfg.Out, t, width)
	c.bound("CosSin", a.CosSin, tensor.F32, -1, model.RopeRow)
	c.bound("Positions", step.Positions, tensor.I32, t)
	c.cache("Caches.Window", a.Caches.Window, k.cfg.Caches.Window, l.insert.Variant() == projection.VariantBase)
	if c.err != nil {
		return c.err
	}
	return rehearse(k.dev, opWholeLayer, rec, func(rec *vk.Recorder) error {
		return l.schedule(rec, step, a, beside)
	})
}

func (x *layerLinear) record(rec *vk.Recorder, from, to tensor.Tensor) error {
	return x.op.Record(rec, projection.LinearArgs{X: from, W: x.w, Out: to, Scratch: x.scratch})
}
