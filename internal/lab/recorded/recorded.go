// Package recorded has three layers of a very small DeepSeek-V4, one of each kind, and what
// transformers made of 340 tokens in them: another implementation, in another language, whose
// recordings are in the binary.
//
// The model was made by PyTorch from a seed, so its weights are made here again, bit for bit. The
// run was in float32, 300 tokens of prefill in one call and 40 single decode steps, with the
// window's rows and the compressed entries rounded through the FP8 page format, and the indexer's
// queries and keys through FP8, as vkmla stores them.
package recorded

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/safetensors"
	"github.com/vkmla/vkmla/pipeline/model"
)

// Tokens of the recording, and how many of them transformers took in its first call.
const (
	Tokens  = 340
	Prefill = 300
)

// Config returns the model's configuration: layers 0 to 2 are of the kinds window, C4A and C128A.
func Config() model.Config {
	c := model.FlashConfig()
	c.Hidden, c.Heads, c.QRank, c.ORank, c.Groups, c.IndexHeads = 256, 8, 128, 128, 2, 8
	c.Layers, c.Quantization = model.V4Layers(0, 4, 128), ""
	return c
}

// Layer holds what was recorded of a layer. A token attends all entries that it may see: there are
// fewer than its indexer may pick.
type Layer struct {
	In  []float32 // [Tokens, Hidden], rounded to bf16 as an engine takes them
	Out []float32 // [Tokens, Hidden], rounded to float16
}

//go:embed layers.npz
var rows []byte

// Archive returns the recordings as they are stored: L<i>.in, bf16 bits, and L<i>.out.
func Archive() []byte { return slices.Clone(rows) }

// Layers returns the recordings of all layers. Callers must not change them.
var Layers = sync.OnceValues(func() ([]Layer, error) {
	npz, err := vectors.ReadArchive("layers.npz", rows)
	if err != nil {
		return nil, err
	}
	all := make([]Layer, len(Config().Layers))
	for i := range all {
		in, err := npz.Array(fmt.Sprintf("L%d.in", i))
		if err != nil {
			return nil, err
		}
		out, err := npz.Array(fmt.Sprintf("L%d.out", i))
		if err != nil {
			return nil, err
		}
		all[i].In = in.BF16()
		all[i].Out = narrow(out)
	}
	return all, nil
})

// narrow returns an array's numbers.
func narrow(a vectors.Array) (x []float32) {
	for _, v := range a.Float64s() {
		x = append(x, float32(v))
	}
	return x
}

// Model returns the model: weights in bf16. Callers must not change it.
var Model = sync.OnceValue(func() *fakemodel.Model {
	c := Config()
	b := &builder{cfg: c, torch: newTwister(seed), model: &fakemodel.Model{Config: fakemodel.ConfigFile(c), Values: map[string][]float32{}}}
	delete(b.model.Config, "quantization_config")
	for i, l := range c.Layers {
		b.skip(firsts[i])
		b.layer(i, l)
	}
	return b.model
})

// seed is that of the PyTorch generator, and firsts are how much of it was drawn before each layer:
// embeddings, and the layers' feed-forward parts.
const seed = 12

var firsts = []int{131072, 1656976, 3977120}

// builder makes the tensors in the order in which PyTorch drew them.
type builder struct {
	cfg   model.Config
	torch *twister
	drawn int
	stem  string
	model *fakemodel.Model
}

func (b *builder) skip(to int) {
	for ; b.drawn < to; b.drawn++ {
		b.torch.draw()
	}
}

func (b *builder) layer(i int, l model.Layer) {
	c := b.cfg
	b.stem = fmt.Sprintf("layers.%d.attn.", i)
	b.add("attn_sink", 1, 0, c.Heads)
	b.matrix("wq_a", c.QRank, c.Hidden)
	b.add("q_norm.weight", normScale, 1, c.QRank)
	b.matrix("wq_b", c.Heads*cache.D, c.QRank)
	b.matrix("wkv", cache.D, c.Hidden)
	b.add("kv_norm.weight", normScale, 1, cache.D)
	b.matrix("wo_a", c.Groups*c.ORank, c.HeadsPerGroup()*cache.D)
	b.matrix("wo_b", c.Hidden, c.Groups*c.ORank)
	if l.Compresses() {
		b.compressor("compressor.", l, cache.D)
	}
	if l.Picks == model.PickOwn {
		b.compressor("indexer.compressor.", l, cache.IndexDim)
		b.matrix("indexer.wq_b", c.IndexHeads*cache.IndexDim, c.QRank)
		b.matrix("indexer.weights_proj", c.IndexHeads, c.Hidden)
	}
}

func (b *builder) compressor(stem string, l model.Layer, dim int) {
	channels := l.Compression(dim).Channels()
	b.add(stem+"ape", 0.5, 0, l.Ratio, channels)
	b.matrix(stem+"wkv", channels, b.cfg.Hidden)
	b.matrix(stem+"wgate", channels, b.cfg.Hidden)
	b.add(stem+"norm.weight", normScale, 1, dim)
}

// normScale is the spread of the norms' weights around 1.
const normScale = 0.2

func (b *builder) matrix(name string, n, k int) {
	b.add(name+".weight", float32(1/math.Sqrt(float64(k))), 0, n, k)
}

// add draws a tensor: mean + scale * a normal distribution, rounded to bf16.
func (b *builder) add(name string, scale, mean float32, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	b.drawn += max(n, 16)
	values := b.torch.normals(n)
	data := make([]byte, 0, 2*n)
	for i, v := range values {
		bits := numfmt.BF16Encode(float32(v*scale) + mean)
		if up, ok := other[at{b.stem + name, i}]; ok {
			bits = uint16(int(bits) + up)
		}
		data, values[i] = append(data, byte(bits), byte(bits>>8)), numfmt.BF16Decode(bits)
	}
	b.model.Values[b.stem+name] = values
	b.model.Tensors = append(b.model.Tensors, &fakemodel.Tensor{Name: b.stem + name, DType: safetensors.BF16, Shape: shape, Data: data})
}

// at is an element of a tensor.
type at struct {
	name string
	i    int
}

// other are the weights next to the middle of two numbers of bf16 for which PyTorch's vectorised
// functions, which err in the last bit of a float32, gave the other one: of a magnitude larger or
// smaller by one.
var other = map[at]int{
	{"layers.0.attn.wq_b.weight", 286785}:           -1,
	{"layers.0.attn.wq_b.weight", 355569}:           -1,
	{"layers.0.attn.wo_a.weight", 377397}:           -1,
	{"layers.0.attn.wo_a.weight", 513856}:           -1,
	{"layers.1.attn.wkv.weight", 41296}:             -1,
	{"layers.1.attn.compressor.wkv.weight", 20225}:  1,
	{"layers.1.attn.compressor.wkv.weight", 60154}:  1,
	{"layers.1.attn.compressor.wkv.weight", 81218}:  1,
	{"layers.1.attn.compressor.wkv.weight", 258043}: -1,
	{"layers.1.attn.indexer.wq_b.weight", 71006}:    -1,
}
