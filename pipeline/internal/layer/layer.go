package layer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Layer is one layer of a model, for the steps of its Kernels. The package's documentation has
// the formula.
type Layer struct {
	kernels *Kernels // nil once closed
	w       *model.DeviceLayer
	plan    schedule
	context schedule // of tokens of the context, in a layer that drafts

	rows tensor.Tensor // factors of the rows of NVFP4 weights, absent if there are none
	wide tensor.Tensor // weights_proj with rows of zeros below, absent if it needs none: see widen

	insert *projection.QInsert
	norm   *projection.QKVNorm     // nil where norms are part of other operations
	chain  *projection.LinearChain // wo_a and wo_b in one launch; nil if they are two

	inputs         [sources][]layerInput // with fewer bits, that products take; none where all are bf16
	unropesToCodes bool                  // what undoes RoPE in the attention's output makes it FP8

	qkv, qb, oa, ob             linear
	gates                       linear // with a compressor
	idxQB, idxWeights, idxGates linear // with an indexer; idxGates with keys of its own
}

// use is a linear layer that a kind of layer has: where it goes, and what its matrix has to be.
type use struct {
	to           *linear
	name         string
	m            model.DeviceMatrix
	n, k, groups int // outputs and inputs, of a group
	out          tensor.DType
	from         source
	norm         tensor.Tensor               // weights of a norm of the first QRank outputs; may be absent
	x            projection.ActivationFormat // of the input
}

// NewLayer makes a layer of weights on the device, which it uses but does not own: they stay
// until the layer is closed. It builds the kernels for the formats of its weights that no layer
// of the kind had before. The caller closes the layer.
//
// Errors: vk.ErrArgument for weights of another kind, of shapes that the configuration does not
// have, or an input_scale that Config.Quantise cannot take; vk.ErrClosed for weights that were
// closed; those of projection.NewLinear and of tensor.New.
func (k *Kernels) NewLayer(ctx context.Context, w *model.DeviceLayer) (*Layer, error) {
	if err := k.checkWeights(w); err != nil {
		return nil, err
	}
	if err := k.begin(ctx); err != nil {
		return nil, fmt.Errorf("%s %d: %w", opNewLayer, w.Layer, err)
	}
	l := &Layer{kernels: k, w: w}
	uses := l.uses()
	for _, u := range uses {
		if got := u.m; got.N != u.n*u.groups || got.K != u.k {
			return nil, badWeights(u.name, fmt.Sprintf("[%d, %d]", got.N, got.K), "[%d, %d]", u.n*u.groups, u.k)
		}
		if err := checkInput(&u); err != nil {
			return nil, err
		}
	}
	if err := l.build(ctx, uses); err != nil {
		return nil, errors.Join(fmt.Errorf("%s %d: %w", opNewLayer, w.Layer, err), l.Close())
	}
	return l, nil
}

func badWeights(arg string, got any, want string, a ...any) error {
	return &vk.ArgumentError{Op: opNewLayer, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
}

func (k *Kernels) checkWeights(w *model.DeviceLayer) error {
	switch {
	case w.Closed():
		return fmt.Errorf("%s: weights of layer %d %w", opNewLayer, w.Layer, vk.ErrClosed)
	case (w.Compressor != nil) != (k.main != nil) || (w.Indexer != nil) != (k.indexer != nil) ||
		w.Indexer != nil && !k.makesKeysBy(w.Indexer):
		return badWeights("w", fmt.Sprintf("layer %d, compressor %v, indexer %v", w.Layer, w.Compressor != nil, w.Indexer != nil),
			"what a layer of kind %s has", k.cfg.Spec.Name)
	case w.Sink.DType != tensor.F32 || w.Sink.Len() != k.heads:
		return badWeights("w.Sink", w.Sink, "[%d] f32", k.heads)
	}
	return nil
}

// makesKeysBy reports whether an indexer has the weights by which layers of the kind make keys, and
// no others.
func (k *Kernels) makesKeysBy(x *model.DeviceIndexer) bool {
	latent := k.cfg.Spec.LatentKeys
	return (x.Keys != nil) == latent && (x.Compressor != nil) == (k.keys != nil && !latent)
}

// uses lists the linear layers of l.
func (l *Layer) uses() []use {
	k, w, m := l.kernels, l.w, l.kernels.cfg.Model
	var none, qNorm tensor.Tensor
	if k.want.fusedNorm {
		qNorm = w.QNorm
	}
	list := []use{
		{&l.qkv, "QKV", w.QKV, m.QRank + headDim, m.Hidden, 1, tensor.BF16, fromHidden, qNorm, 0},
		{&l.qb, "QB", w.QB, k.heads * headDim, m.QRank, 1, tensor.BF16, fromQLoRA, none, 0},
		{&l.oa, "OA", w.OA, m.ORank, m.HeadsPerGroup() * headDim, k.groups, tensor.BF16, fromO, none, 0},
		{&l.ob, "OB", w.OB, m.Hidden, k.groups * m.ORank, 1, k.cfg.Out, fromOLoRA, none, 0},
	}
	if c := w.Compressor; c != nil {
		n := k.main.compression.Columns()
		list = append(list, use{&l.gates, "Compressor.KVGate", c.KVGate, n, m.Hidden, 1, tensor.F32, fromHidden, none, 0})
	}
	if x := w.Indexer; x != nil {
		list = append(list,
			use{&l.idxQB, "Indexer.QB", x.QB, m.IndexHeads * indexDim, m.QRank, 1, tensor.BF16, fromQLoRA, none, 0},
			use{&l.idxWeights, "Indexer.Weights", x.Weights, m.IndexHeads, m.Hidden, 1, tensor.BF16, fromHidden, none, 0})
		if c := x.Compressor; c != nil {
			n := k.keys.compression.Columns()
			list = append(list, use{&l.idxGates, "Indexer.Compressor.KVGate", c.KVGate, n, m.Hidden, 1, tensor.F32, fromHidden, none, 0})
		}
		if c := x.Keys; c != nil {
			list = append(list, use{&l.idxGates, "Indexer.Keys.K", c.K, indexDim, headDim, 1, tensor.F32, fromLatents, none, 0})
		}
	}
	for i := range list {
		// wo_a of FP8 in blocks of 32 takes bf16, as in DeepSeek-V4.1's own code. So does what
		// takes latents, which no operation gives with fewer bits.
		u := &list[i]
		x := k.cfg.activation(&u.m)
		stays := u.to == &l.oa && x == projection.ActivationMXFP8 || u.from == fromLatents
		if !stays {
			u.x = x
		}
	}
	return list
}

func (l *Layer) build(ctx context.Context, uses []use) (err error) {
	k := l.kernels
	if err = l.factors(ctx, uses); err != nil {
		return err
	}
	if err = l.widen(ctx, uses); err != nil {
		return err
	}
	for _, u := range uses {
		cfg := projection.LinearConfig{N: u.n, K: u.k, Groups: u.groups, Weights: u.m.Format, Activations: u.x, Out: u.out,
			MaxTokens: k.cfg.Tokens, Invariant: k.cfg.Invariant, OnDemand: true, Beside: l.beside(&u, uses)}
		if !u.norm.IsZero() {
			cfg.Norm, cfg.NormColumns, cfg.NormEps = u.norm.DType, k.cfg.Model.QRank, k.cfg.Model.Eps
		}
		if u.to.op, err = k.linear(cfg); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		if n := u.to.op.ScratchLen(k.cfg.Tokens); n > 0 {
			k.scratch().Add("parts of "+u.name, u.partsUse(), &u.to.scratch, tensor.F32, n)
		}
		u.to.w.Data, u.to.w.Scale = u.m.Data, u.m.Scales
		if u.to.w.RowScale.IsZero() {
			u.to.w.RowScale = u.m.RowScales
		}
	}
	if err = l.quantise(uses); err != nil {
		return err
	}
	if l.chain, err = k.chain(ctx, l.oa.op, l.ob.op); err != nil || k.cfg.Count != nil {
		return err
	}
	if err = l.prepare(uses); err != nil {
		return err
	}
	t := l.traits()
	var kvNorm tensor.DType
	if t.fusedNorm {
		kvNorm = l.w.KVNorm.DType
	} else if l.norm, err = k.qkvNormOp(); err != nil {
		return err
	}
	l.plan, l.context = choose(k.tune, t), contexts.of(t)
	l.insert, err = k.inserter(kvNorm)
	return err
}

// beside are the outputs of the products that are recorded beside one of Hidden's. weights_proj has
// too few for tiles as large as theirs.
func (l *Layer) beside(u *use, uses []use) (n int) {
	if u.from != fromHidden || u.to == &l.idxWeights || !u.norm.IsZero() {
		return 0
	}
	for i := range uses {
		if x := &uses[i]; x.from == fromHidden && x.to != u.to && x.to != &l.idxWeights {
			n += x.n
		}
	}
	return n
}

// prepare asks for the kernels that steps launch, of the operations for which this depends on
// whether there is a chain. They are compiled while the rest is made.
func (l *Layer) prepare(uses []use) error {
	k := l.kernels
	for _, u := range uses {
		if l.chain != nil && (u.to == &l.oa || u.to == &l.ob) {
			continue
		}
		if err := u.to.op.Prepare(k.cfg.Tokens, u.to.scratch); err != nil {
			return err
		}
	}
	return k.mla.prepare(k, l.chain.Joined())
}

// traits describes the layer, now that its operations are made.
func (l *Layer) traits() traits {
	k := l.kernels
	var codes [sources]bool
	for i, list := range l.inputs {
		codes[i] = len(list) > 0
	}
	return traits{
		tokens:      k.cfg.Tokens,
		indexer:     k.indexer != nil,
		compresses:  k.main != nil,
		keys:        k.keys != nil,
		latentKeys:  k.cfg.Spec.LatentKeys,
		ungated:     k.main != nil && k.main.compression.Ungated,
		fusedNorm:   l.qkv.op.Norms(k.cfg.Tokens),
		saves:       k.want.saves,
		lateQueries: k.mla.normsQueries,
		gathers:     k.mla.gathers(),
		sums:        slices.ContainsFunc(l.inputProducts(), func(x *linear) bool { return x.op.Sums(k.cfg.Tokens, x.scratch) }),
		rawScores:   k.indexer != nil && k.indexer.query == nil,
		touch:       k.want.touch,
		touches:     k.want.touches,
		unroped:     k.output.unrope == nil && !l.unropesToCodes,
		codes:       codes,
		chained:     l.chain != nil,
		joined:      l.chain.Joined(),
	}
}

// inputProducts are the products of Hidden whose parts inputSums adds up.
func (l *Layer) inputProducts() []*linear {
	list := []*linear{&l.qkv}
	if l.kernels.main != nil {
		list = append(list, &l.gates)
	}
	if l.kernels.keys != nil && !l.kernels.cfg.Spec.LatentKeys {
		list = append(list, &l.idxGates)
	}
	return list
}

// factors puts the one factor of matrices that have one on the device, for every row, as kernels
// take it. That of an input of 4 bits is part of it.
func (l *Layer) factors(ctx context.Context, uses []use) error {
	var data []byte
	begin := make([]int, len(uses))
	const align = tensor.Align / 4 // rows
	for i, u := range uses {
		begin[i] = len(data) / 4
		if u.m.Global == 0 {
			continue
		}
		factor := u.m.Global
		if u.x == projection.ActivationNVFP4 {
			factor *= u.m.Input
		}
		for range (u.m.N + align - 1) / align * align {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(factor))
		}
	}
	if len(data) == 0 {
		return nil
	}
	var err error
	if l.rows, err = l.more(tensor.F32, len(data)/4); err != nil {
		return err
	}
	for i, u := range uses {
		if u.m.Global != 0 {
			u.to.w.RowScale = l.rows.Rows(begin[i], begin[i]+u.m.N)
		}
	}
	if l.kernels.cfg.Count != nil {
		return nil
	}
	return l.rows.Upload(ctx, data)
}

// widen gives weights_proj of a number of heads that no kernel has more rows, of zeros. Models
// that are in use have 64 heads; it serves small ones.
func (l *Layer) widen(ctx context.Context, uses []use) error {
	for i := range uses {
		u := &uses[i]
		n := linearRows(u.n)
		if u.to != &l.idxWeights || n == u.n || u.m.Format != projection.FormatBF16 {
			continue
		}
		var err error
		if l.wide, err = l.more(tensor.BF16, n, u.k); err != nil {
			return err
		}
		if l.kernels.cfg.Count == nil {
			if err := l.copyWide(ctx, u); err != nil {
				return err
			}
		}
		u.n, u.m.Data = n, l.wide
	}
	return nil
}

// more makes a tensor of what the layer has beside its weights.
func (l *Layer) more(dt tensor.DType, shape ...int) (tensor.Tensor, error) {
	return l.kernels.cfg.Count.Tensor(l.kernels.dev, fmt.Sprintf("weights of layer %d", l.w.Layer), dt, shape...)
}

// copyWide writes the rows of widen.
func (l *Layer) copyWide(ctx context.Context, u *use) error {
	return l.kernels.dev.Run(ctx, func(rec *vk.Recorder) error {
		return errors.Join(rec.Fill(l.wide.View(), 0), rec.Copy(l.wide.Rows(0, u.n).View(), u.m.Data.View()))
	})
}

// Bytes returns the memory that the layer has beside its weights and what it shares.
func (l *Layer) Bytes() uint64 { return l.rows.Bytes() + l.wide.Bytes() }

// Close frees the layer's own memory; closing again does nothing.
func (l *Layer) Close() error {
	if l == nil || l.kernels == nil {
		return nil
	}
	l.kernels = nil
	return errors.Join(l.rows.Close(), l.wide.Close())
}

// Levels are the names of the operations that do not wait for each other, level by level, as
// sections name them.
func (l *Layer) Levels() [][]string {
	var list [][]string
	for _, level := range l.plan {
		var names []string
		for _, o := range level {
			if name := sections[o]; name != "" {
				names = append(names, name)
			}
		}
		list = append(list, names)
	}
	return list
}
