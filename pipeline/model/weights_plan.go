package model

import (
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

// Plan returns what Checkpoint.Plan returns for one of some ranks, where there is no checkpoint
// yet: linear layers that released checkpoints quantise have a format, FormatBF16, FormatFP8 or
// FormatNVFP4 of package projection; all else is as in these. Without numbers of layers it is for
// all but those that only predict ahead. The layers have no memory; there is nothing to close.
//
// Errors: *ConfigError; vk.ErrArgument for another format, for ranks that are no divisor of
// o_groups, and for an unknown layer.
func (c Config) Plan(format projection.Format, ranks int, layers ...int) ([]*DeviceLayer, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	switch {
	case !slices.Contains([]projection.Format{projection.FormatBF16, projection.FormatFP8, projection.FormatNVFP4}, format):
		return nil, badArgument(opPlan, "format", format, "bf16, fp8 or nvfp4")
	case ranks < 1 || c.Groups%ranks != 0:
		return nil, badArgument(opPlan, "ranks", ranks, "a divisor of the %d groups", c.Groups)
	}
	if len(layers) == 0 {
		for i := range c.mainLayers() {
			layers = append(layers, i)
		}
	}
	var list []LayerWeights
	for _, i := range layers {
		if i < 0 || i >= len(c.Layers) {
			return nil, badArgument(opPlan, "layers", i, "0 to %d", len(c.Layers)-1)
		}
		list = append(list, outline{c, format, ranks}.layer(i))
	}
	return planned(list)
}

// outline makes weights that have sizes and no data.
type outline struct {
	Config
	format projection.Format
	ranks  int
}

func (o outline) layer(i int) LayerWeights {
	spec, rows, heads := &o.Layers[i].LayerSpec, o.Groups*o.ORank/o.ranks, o.Heads/o.ranks
	w := LayerWeights{Layer: i, QKV: o.matrix(o.format, o.QRank+cache.D, o.Hidden), QNorm: outlined(tensor.BF16, o.QRank),
		KVNorm: outlined(tensor.BF16, cache.D), QB: o.matrix(o.format, heads*cache.D, o.QRank), Sink: outlined(tensor.F32, heads),
		OA: o.matrix(o.format, rows, o.HeadsPerGroup()*cache.D), OB: o.matrix(o.format, o.Hidden, rows)}
	if spec.Compresses() {
		w.Compressor = o.compressor(spec, cache.D)
	}
	if spec.Picks != PickOwn {
		return w
	}
	w.Indexer = &IndexerWeights{QB: o.matrix(o.format, o.IndexHeads*cache.IndexDim, o.QRank),
		Weights: o.matrix(projection.FormatBF16, o.IndexHeads, o.Hidden)}
	switch {
	case spec.LatentKeys:
		w.Indexer.Keys = &KeyWeights{o.matrix(projection.FormatBF16, cache.IndexDim, cache.D), outlined(tensor.BF16, cache.IndexDim)}
	case spec.Compresses():
		w.Indexer.Compressor = o.compressor(spec, cache.IndexDim)
	}
	return w
}

func (o outline) compressor(spec *LayerSpec, dim int) *CompressorWeights {
	c := spec.Compression(dim)
	w := &CompressorWeights{KVGate: o.matrix(projection.FormatBF16, c.Columns(), o.Hidden), Norm: outlined(tensor.BF16, dim)}
	if spec.Gated() {
		w.Ape = outlined(tensor.F32, c.Ratio, c.Channels())
	}
	return w
}

func (o outline) matrix(f projection.Format, n, k int) Matrix {
	if f == projection.FormatFP8 {
		if f = fp8Format(o.weightBlock(), true); f == projection.FormatFP8x32 && k%fp8Run != 0 {
			f = projection.FormatBF16
		}
	}
	is, sized := f.Shapes(n, k), func(t tensor.Tensor) Blob { return Blob{size: int64(t.Bytes())} }
	m := Matrix{Format: f, N: n, K: k, Data: sized(is.Data), Scales: sized(is.Scale)}
	if f == projection.FormatNVFP4 {
		m.Global = 1
	}
	return m
}

// outlined is a small tensor without data.
func outlined(d tensor.DType, shape ...int) Vector {
	t := tensor.Tensor{DType: d, Shape: shape}
	return Vector{DType: d, Shape: shape, Data: Blob{size: int64(t.Bytes())}}
}
