package gpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// formats of a small model's matrices.
type formats struct {
	routed, shared, gate, ends weights.Format
	stored                     [3]string // blocks of w1 and w3, of w2, of the shared expert and the gate
}

// small is a model of odd sizes: 5 experts, 3 for a token, and 2 layers, the first with a choice by
// table.
func small(rng *rand.Rand, f formats, streams int) *weights.Model {
	c := weights.Config{Vocab: 37, Streams: streams, SinkhornSteps: 20, HyperEps: 1e-6, Experts: 5, PerToken: 3, Width: 96,
		Scoring: "sqrtsoftplus", Normalise: true, Factor: 1.5, Limit: 2}
	c.Hidden, c.Eps = 160, 1e-6
	if f.stored[0] != "" {
		c.Hidden, c.Width = 512, 256
	}
	around := func(mean, spread float64, n int) (list []float32) {
		for range n {
			list = append(list, float32(mean+spread*rng.NormFloat64()))
		}
		return list
	}
	hyper := func(rows, scales int) weights.Hyper {
		fn := matrixOf(rng, weights.F32, rows, streams*c.Hidden)
		return weights.Hyper{Fn: fn, Base: around(0, .3, rows), Scale: around(1, .3, scales)}
	}
	of := func(f weights.Format, stored string, n, k int) weights.Matrix {
		if stored != "" {
			return blocksOf(rng, stored, n, k)
		}
		return matrixOf(rng, f, n, k)
	}
	expert := func(f weights.Format, up, down string) weights.Expert {
		w1, w3, w2 := of(f, up, c.Width, c.Hidden), of(f, up, c.Width, c.Hidden), of(f, down, c.Hidden, c.Width)
		return weights.Expert{W1: w1, W3: w3, W2: w2}
	}
	m := &weights.Model{Config: c, Embed: matrixOf(rng, f.ends, c.Vocab, c.Hidden), Head: matrixOf(rng, f.ends, c.Vocab, c.Hidden),
		Norm: around(1, .2, c.Hidden), HeadHC: hyper(streams, 1)}
	for i := range 2 {
		l := weights.Layer{AttnHC: hyper((2+streams)*streams, 3), FFNHC: hyper((2+streams)*streams, 3),
			AttnNorm: around(1, .2, c.Hidden), FFNNorm: around(1, .2, c.Hidden),
			Gate: of(f.gate, f.stored[2], c.Experts, c.Hidden), Shared: expert(f.shared, f.stored[2], f.stored[2])}
		if i == 0 {
			for range c.Vocab * c.PerToken {
				l.Table = append(l.Table, rng.Int32N(int32(c.Experts))) // a token may have an expert twice
			}
		} else {
			l.Bias = around(0, .5, c.Experts)
		}
		for range c.Experts {
			l.Experts = append(l.Experts, expert(f.routed, f.stored[0], f.stored[1]))
		}
		m.Layers = append(m.Layers, l)
	}
	return m
}

// smallDrafts is small with a draft block of one layer, in blocks of 3.
func smallDrafts(rng *rand.Rand, f formats) *weights.Model {
	m := small(rng, f, 2)
	c := &m.Config
	c.Layers, c.DraftBlock, c.DraftTargets, c.MarkovRank = model.V4Layers(0), 3, []int{0}, 16
	c.Config = c.Config.WithDrafts(1)
	m.Draft = &weights.Draft{Main: matrixOf(rng, f.shared, c.Hidden, c.Hidden), MainNorm: m.Norm,
		HeadHC: m.HeadHC, Norm: m.Layers[0].AttnNorm,
		MarkovIn: matrixOf(rng, f.ends, c.Vocab, c.MarkovRank), MarkovOut: matrixOf(rng, weights.BF16, c.Vocab, c.MarkovRank)}
	return m
}

// matrixOf is a random matrix whose outputs are about as long as its inputs.
func matrixOf(rng *rand.Rand, f weights.Format, n, k int) weights.Matrix {
	m := weights.Matrix{Format: f, N: n, K: k}
	spread := 1 / math.Sqrt(float64(k))
	switch f {
	case weights.BF16:
		for range n * k {
			m.Data = binary.LittleEndian.AppendUint16(m.Data, uint16(math.Float32bits(float32(spread*rng.NormFloat64()))>>16))
		}
	case weights.F32:
		for range n * k {
			m.Data = binary.LittleEndian.AppendUint32(m.Data, math.Float32bits(float32(spread*rng.NormFloat64())))
		}
	case weights.FP8:
		for range n * k {
			m.Data = append(m.Data, byte(rng.Uint32N(0x7F))|byte(rng.Uint32()&0x80)) // all but NaN
		}
		m.Side = 32
		for range opkit.CeilDiv(n, m.Side) * opkit.CeilDiv(k, weights.FP8Block) {
			m.BlockScales = append(m.BlockScales, float32(spread/100*(1+rng.Float64())))
		}
	case weights.MXFP4:
		for range n * k / 2 {
			m.Data = append(m.Data, byte(rng.Uint32()))
		}
		for range n * k / weights.MXBlock {
			m.Scales = append(m.Scales, byte(127+math.Log2(spread)-2+3*rng.Float64()))
		}
	}
	return m
}

// blocksOf is a random matrix of blocks of GGUF.
func blocksOf(rng *rand.Rand, stored string, n, k int) weights.Matrix {
	return weights.Matrix{Format: weights.Blocks, N: n, K: k, Stored: gguf.FormatNamed(stored), Factor: 1,
		Data: fakegguf.Random(rng, stored, stored, n, k).Data}
}

// opened is a small model on a device and on the processor.
func opened(t *testing.T, dev *vk.Device, w *weights.Model, o Options) (*GPU, *cpu.CPU) {
	t.Helper()
	g, err := New(t.Context(), dev, w, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close()) })
	c := cpu.New(w, cpu.Options{Workers: 1})
	t.Cleanup(c.Close)
	return g, c
}

// run records something and runs it.
func run(t *testing.T, g *GPU, record func(rec *vk.Recorder) error) {
	t.Helper()
	require.NoError(t, g.dev.Run(t.Context(), record))
}

// poison fills memory with NaN.
func poison(t *testing.T, g *GPU, views ...vk.View) {
	t.Helper()
	run(t, g, func(rec *vk.Recorder) error {
		for _, v := range views {
			require.NoError(t, rec.Fill(v, 0x7FC0_7FC0))
		}
		return nil
	})
}

// words reads memory of a device.
func download(t *testing.T, g *GPU, v vk.View) []uint32 {
	t.Helper()
	data := make([]byte, v.Size)
	require.NoError(t, g.dev.Download(t.Context(), data, v))
	list := make([]uint32, len(data)/4)
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return list
}

func numbers(t *testing.T, g *GPU, v vk.View) []float32 {
	t.Helper()
	words := download(t, g, v)
	list := make([]float32, len(words))
	for i, w := range words {
		list[i] = math.Float32frombits(w)
	}
	return list
}

func upload(t *testing.T, g *GPU, v vk.View, words []uint32) {
	t.Helper()
	var data []byte
	for _, w := range words {
		data = binary.LittleEndian.AppendUint32(data, w)
	}
	require.NoError(t, g.dev.Upload(t.Context(), v.Buffer.View(v.Offset, uint64(len(data))), data))
}

func bitsOf(list []float32) (words []uint32) {
	for _, v := range list {
		words = append(words, math.Float32bits(v))
	}
	return words
}

// placed are rows of activations as products read them, and placed back.
func placed(x []float32, k int) []uint32 {
	rows := len(x) / k
	words := make([]uint32, rows*quads(k)*4)
	for i := range words {
		words[i] = 0x7FC0_7FC0 // after the columns there is poison
	}
	for t := range rows {
		for c := 0; c < k; c += 2 {
			words[placeOf(t, c, k)] = math.Float32bits(x[t*k+c])>>16 | math.Float32bits(x[t*k+c+1])&0xFFFF0000
		}
	}
	return words
}

func unplaced(words []uint32, k, rows int) (x []float32) {
	for t := range rows {
		for c := 0; c < k; c += 2 {
			w := words[placeOf(t, c, k)]
			x = append(x, math.Float32frombits(w<<16), math.Float32frombits(w&0xFFFF0000))
		}
	}
	return x
}

// placeOf is the word of column c of row t.
func placeOf(t, c, k int) int {
	q := c / 8
	q = q&^127 | q&3<<5 | q>>2&31
	return (t*quads(k)+q)*4 + c%8/2
}

// normals are bf16 numbers.
func normals(rng *rand.Rand, n int) (x []float32) {
	for range n {
		x = append(x, numfmt.BF16Round(float32(rng.NormFloat64())))
	}
	return x
}

// step tells the device of T tokens, all wanted.
func step(t *testing.T, g *GPU, ids []int32) {
	t.Helper()
	words := []uint32{uint32(len(ids)), uint32(len(ids)), 0, 0}
	for _, id := range ids {
		words = append(words, uint32(id))
	}
	for range g.most - len(ids) {
		words = append(words, 0xFFFFFF) // padding has no token
	}
	for i := range ids {
		words = append(words, uint32(i))
	}
	upload(t, g, g.step, words)
}

func tokenIDs(rng *rand.Rand, T, vocab int) (ids []int32) {
	for range T {
		ids = append(ids, rng.Int32N(int32(vocab)))
	}
	return ids
}

// off returns the distance of all numbers from those wanted, relative to their size.
func off(got, want []float32) float64 {
	wrong, size := 0.0, 0.0
	for i, w := range want {
		wrong += math.Pow(float64(got[i])-float64(w), 2)
		size += float64(w) * float64(w)
	}
	return math.Sqrt(wrong / size)
}
