package model

import (
	"slices"

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
		l := layerReader{cfg: c, layer: i, ranks: ranks, plan: format}
		w, err := l.read()
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	return planned(list)
}

// quantised lists the linear layers that released checkpoints quantise.
var quantised = []string{"wq_a", "wkv", "wq_b", "wo_a", "wo_b", "indexer.wq_b"}

// outline is a matrix that has a size and no data.
func (l *layerReader) outline(stem string, p part) Matrix {
	f, n, k := projection.FormatBF16, p.s-p.r, p.b-p.a
	if slices.Contains(quantised, stem) {
		f = l.plan
	}
	if f == projection.FormatFP8 {
		if f = fp8Format(l.cfg.weightBlock(), true); f == projection.FormatFP8x32 && k%fp8Run != 0 {
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
