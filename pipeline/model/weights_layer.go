package model

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
)

// layerReader builds the weights of a layer from a model's tensors. It remembers the first error.
type layerReader struct {
	model       source
	cfg         Config
	layer       int
	names       layerNames
	used        map[string]safetensors.Tensor
	rank, ranks int
	widened     *Widened
	plan        projection.Format // of matrices without data, see Config.Plan; 0: there is a model
	err         error
}

// guarded runs f, which reads mapped data.
func guarded(f func()) error {
	err := files.Guard(func() error { f(); return nil })
	if err != nil {
		return fmt.Errorf("model: read weights: %w: %w", ErrCheckpoint, err)
	}
	return nil
}

func (l *layerReader) guard(name string, f func()) {
	if err := files.Guard(func() error { f(); return nil }); err != nil && l.err == nil {
		l.err = &CheckpointError{File: l.model.File(name), Tensor: name, err: err}
	}
}

func (l *layerReader) wrongValue(t safetensors.Tensor, got, want string) {
	if l.err == nil {
		l.err = &CheckpointError{File: l.model.File(t.Name), Tensor: t.Name, Got: got, Want: want}
	}
}

func (l *layerReader) wrong(t safetensors.Tensor, want string, a ...any) {
	l.wrongValue(t, t.String(), fmt.Sprintf(want, a...))
}

// unread refuses a tensor's type. want says what is read but blocks of GGUF.
func (l *layerReader) unread(t safetensors.Tensor, want string) {
	if t.DType.Bits() == 0 {
		want = "one of " + gguf.Decoded()
	}
	l.wrongValue(t, t.String(), want)
}

func (l *layerReader) has(name string) bool { _, ok := l.names[name]; return ok }

// either returns the first of the spellings that the layer has, or else the first of all.
func (l *layerReader) either(names ...string) string {
	for _, n := range names {
		if l.has(n) {
			return n
		}
	}
	return names[0]
}

// tensor finds a tensor of the layer by its released name.
func (l *layerReader) tensor(name string) safetensors.Tensor {
	if l.err != nil {
		return safetensors.Tensor{}
	}
	stored, ok := l.names[name]
	if !ok {
		l.err = &CheckpointError{Tensor: l.model.spelled(&l.cfg, l.layer, name), Got: "absent", Want: "a tensor"}
		return safetensors.Tensor{}
	}
	t, err := l.model.Tensor(stored)
	if err != nil {
		l.err = &CheckpointError{File: l.model.File(stored), Tensor: stored, err: err}
	}
	l.used[name] = t
	return t
}

func (l *layerReader) shape(t safetensors.Tensor, dims ...int) {
	if l.err == nil && !slices.Equal(t.Shape, dims) {
		l.wrongValue(t, t.String(), fmt.Sprintf("shape %v", dims))
	}
}

// vector reads a small tensor of floats with the given shape, elements a to b of its first
// dimension. With narrow, bf16 stays; otherwise it is widened to f32. valid refuses single values.
func (l *layerReader) vector(name string, narrow bool, a, b int, valid func(float64) bool, dims ...int) Vector {
	v := Vector{Name: name, DType: tensor.F32, Shape: append([]int{b - a}, dims[1:]...)}
	if l.plan != 0 {
		if narrow {
			v.DType = tensor.BF16
		}
		v.Data.size = int64(tensor.Tensor{DType: v.DType, Shape: v.Shape}.Bytes())
		return v
	}
	t := l.tensor(name)
	if l.shape(t, dims...); l.err != nil {
		return Vector{}
	}
	v.Name = t.Name
	if !isFloats(t) && blockFormat(t) == nil {
		l.unread(t, "BF16, F16 or F32")
		return Vector{}
	}
	row := 1
	for _, d := range dims[1:] {
		row *= d
	}
	values := make([]float32, (b-a)*row)
	l.guard(t.Name, func() { floats(t)(values, a*row) })
	for i, x := range values {
		if !valid(float64(x)) {
			l.wrongValue(t, fmt.Sprintf("%v at %d", x, a*row+i), "other values")
			return Vector{}
		}
	}
	if narrow && t.DType == safetensors.BF16 {
		v.DType, v.Data = tensor.BF16, grid(t.Data, 2*row, a, b, 0, 2*row)
		return v
	}
	data := make([]byte, 4*len(values)) // small, so it is read now
	for i, x := range values {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(x))
	}
	v.Data = blob(data)
	return v
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// number accepts infinities: a sink of -Inf takes nothing, one of +Inf everything.
func number(x float64) bool { return !math.IsNaN(x) }

// share is the part from i/n to (i+1)/n of a dimension.
func (l *layerReader) share(of int) (from, to int) {
	return of / l.ranks * l.rank, of / l.ranks * (l.rank + 1)
}

// read reads the layer.
func (l *layerReader) read() (LayerWeights, error) {
	c := l.cfg
	w, spec := LayerWeights{Layer: l.layer, stored: l.used}, &c.Layers[l.layer].LayerSpec
	heads, rows, wide := c.Heads*cache.D, c.Groups*c.ORank, c.HeadsPerGroup()*cache.D
	plain := func(stem string, n, k int) Matrix { return l.matrix(stem, n, k, whole(n, k)) }
	norm := func(name string, n int) Vector { return l.vector(name, true, 0, n, finite, n) }

	w.QKV = l.stacked("wq_a", c.QRank, "wkv", cache.D, c.Hidden)
	w.QNorm, w.KVNorm = norm("q_norm.weight", c.QRank), norm("kv_norm.weight", cache.D)
	a, b := l.share(heads)
	w.QB = l.matrix("wq_b", heads, c.QRank, part{a, b, 0, c.QRank})
	a, b = l.share(c.Heads)
	w.Sink = l.vector("attn_sink", false, a, b, number, c.Heads)
	a, b = l.share(rows)
	w.OA = l.matrix("wo_a", rows, wide, part{a, b, 0, wide})
	w.OB = l.matrix("wo_b", c.Hidden, rows, part{0, c.Hidden, a, b})
	if spec.Compresses() {
		w.Compressor = l.compressor("compressor", spec, cache.D)
	}
	if spec.Picks == PickOwn {
		w.Indexer = &IndexerWeights{
			QB:      plain("indexer.wq_b", c.IndexHeads*cache.IndexDim, c.QRank),
			Weights: plain("indexer.weights_proj", c.IndexHeads, c.Hidden),
		}
		switch {
		case spec.LatentKeys:
			w.Indexer.Keys = &KeyWeights{plain("indexer.wk", cache.IndexDim, cache.D), norm("indexer.k_norm.weight", cache.IndexDim)}
		case spec.Compresses():
			w.Indexer.Compressor = l.compressor("indexer.compressor", spec, cache.IndexDim)
		}
	}
	l.leftOver()
	return w, l.err
}

func (l *layerReader) compressor(stem string, spec *LayerSpec, dim int) *CompressorWeights {
	c, hidden := spec.Compression(dim), l.cfg.Hidden
	w, channels := &CompressorWeights{}, c.Channels()
	if spec.Gated() {
		w.KVGate = l.stacked(stem+".wkv", channels, stem+".wgate", channels, hidden)
	} else {
		w.KVGate = l.matrix(stem+".wkv", channels, hidden, whole(channels, hidden))
	}
	switch {
	case spec.Unplaced && spec.Gated():
		w.Ape = Vector{Name: stem + ".ape", DType: tensor.F32, Shape: []int{c.Ratio, channels},
			Data: blob(make([]byte, 4*c.Ratio*channels))}
	case !spec.Unplaced:
		w.Ape = l.vector(stem+".ape", false, 0, c.Ratio, finite, c.Ratio, channels)
	}
	w.Norm = l.vector(stem+".norm.weight", true, 0, dim, finite, dim)
	return w
}

// stacked reads a matrix of n rows and stacks it on another of m.
func (l *layerReader) stacked(upper string, n int, lower string, m, k int) Matrix {
	a, b := l.matrix(upper, n, k, whole(n, k)), l.matrix(lower, m, k, whole(m, k))
	if l.err != nil {
		return Matrix{}
	}
	return stack(a, b)
}

// leftOver refuses tensors of the layer that were not read: they would change the result if they
// were understood.
func (l *layerReader) leftOver() {
	for _, name := range slices.Sorted(maps.Keys(l.names)) {
		stored := l.names[name]
		if _, used := l.used[name]; l.err == nil && !used && !useless(name) {
			l.err = &CheckpointError{File: l.model.File(stored), Tensor: stored, Got: "an unknown tensor",
				Want: fmt.Sprintf("those of a %s layer only", l.cfg.Layers[l.layer].Name)}
		}
	}
}
