package projection_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// timeLinear reports the median device time of a launch, with a burst of work before
// each round: an idle GPU runs slowly. Bytes are those of the weights; launch i takes
// other weights than launch i-1, so that none finds them in a cache.
func timeLinear(b *testing.B, dev *vk.Device, bytes int, flop float64, record func(rec *vk.Recorder, i int) error) {
	const launches, before = 24, 24
	rec := must[*vk.Recorder](b)(dev.NewRecorder())
	defer rec.Close()
	for i := range before + launches {
		if i >= before {
			must[int](b)(rec.Timestamp())
		}
		require.NoError(b, record(rec, i))
	}
	must[int](b)(rec.Timestamp())
	cmd := must[*vk.Commands](b)(rec.End())
	defer cmd.Close()
	for begin := time.Now(); dev.Adapter().Type != vk.TypeCPU && time.Since(begin) < 300*time.Millisecond; {
		require.NoError(b, cmd.Run(b.Context()))
	}
	var us []float64
	for b.Loop() {
		if err := cmd.Run(b.Context()); err != nil {
			b.Fatal(err)
		}
		ns := must[[]float64](b)(cmd.Timestamps())
		for i := range launches {
			us = append(us, (ns[i+1]-ns[i])/1e3)
		}
	}
	slices.Sort(us)
	median := us[len(us)/2]
	b.ReportMetric(median, "gpu-us")
	b.ReportMetric(float64(bytes)/median/1e3, "GB/s")
	b.ReportMetric(flop/median/1e6, "TFLOP/s")
	b.ReportMetric(0, "ns/op")
}

// linearBench is a layer with as many sets of random weights as no cache holds.
type linearBench struct {
	cfg  projection.LinearConfig
	sets []projection.LinearWeights
}

func newLinearBench(b *testing.B, dev *vk.Device, cfg projection.LinearConfig) linearBench {
	rng := rand.New(rand.NewPCG(1, 2))
	rows := max(1, cfg.Groups) * cfg.N
	bytes := cfg.Weights.DataBytes(rows, cfg.K)
	l := linearBench{cfg: cfg}
	data := make([]byte, bytes)
	for i := range data {
		if data[i] = byte(rng.UintN(256)); data[i]&0x7F >= 0x70 { // no NaN in any format
			data[i] &= 0x8F
		}
	}
	blocks := []int{(rows + 127) / 128, (cfg.K + 127) / 128}
	for range min(24, max(2, 160<<20/bytes)) {
		var w projection.LinearWeights
		switch cfg.Weights {
		case projection.FormatBF16:
			w.Data = upload(b, dev, tensor.BF16, data, rows, cfg.K)
		case projection.FormatNVFP4:
			w.Data = upload(b, dev, tensor.U8, data, rows, cfg.K/2)
			w.Scale = upload(b, dev, tensor.U8, slices.Repeat([]byte{0x30}, rows*cfg.K/16), rows, cfg.K/16)
			w.RowScale = upload(b, dev, tensor.F32, slices.Repeat([]float32{0.5}, rows), rows)
		case projection.FormatFP8F32:
			w.Data = upload(b, dev, tensor.U8, data, rows, cfg.K)
			w.Scale = upload(b, dev, tensor.F32, slices.Repeat([]float32{0.01}, blocks[0]*blocks[1]), blocks...)
		default:
			w.Data = upload(b, dev, tensor.U8, data, rows, cfg.K)
			w.Scale = upload(b, dev, tensor.U8, slices.Repeat([]byte{118}, blocks[0]*blocks[1]), blocks...)
		}
		l.sets = append(l.sets, w)
	}
	return l
}

func (l linearBench) run(b *testing.B, dev *vk.Device, op *projection.Linear, tokens int) {
	g := max(1, l.cfg.Groups)
	a := projection.LinearArgs{
		X:   upload(b, dev, tensor.BF16, normal(rand.New(rand.NewPCG(3, 4)), tokens*g*l.cfg.K), tokens, g, l.cfg.K),
		Out: must[tensor.Tensor](b)(tensor.New(dev, "bench", l.cfg.Out, tokens, g*l.cfg.N)),
	}
	b.Cleanup(func() { a.Out.Close() })
	if n := op.ScratchLen(tokens); n > 0 {
		a.Scratch = upload(b, dev, tensor.F32, make([]float32, n), n)
	}
	rows := g * l.cfg.N
	bytes := l.cfg.Weights.DataBytes(rows, l.cfg.K)
	if l.cfg.Weights == projection.FormatNVFP4 {
		bytes += rows * l.cfg.K / 16
	}
	timeLinear(b, dev, bytes, 2*float64(tokens)*float64(rows)*float64(l.cfg.K), func(rec *vk.Recorder, i int) error {
		x := a
		x.W = l.sets[i%len(l.sets)]
		return op.Record(rec, x)
	})
}

// benchLayers are layers of V4-Flash; on a CPU one is enough.
var benchLayers = []struct {
	name string
	projection.LinearConfig
}{
	{"wq_b", projection.LinearConfig{N: 32768, K: 1024}},
	{"wq_a", projection.LinearConfig{N: 1536, K: 4096}},
	{"wo_b", projection.LinearConfig{N: 4096, K: 8192}},
	{"wo_a", projection.LinearConfig{N: 1024, K: 4096, Groups: 8}},
	{"gate", projection.LinearConfig{N: 64, K: 4096}},
}

// BenchmarkLinear times layers by variant, format and number of tokens.
func BenchmarkLinear(b *testing.B) {
	dev := testkit.Device(b)
	for _, layer := range benchLayers {
		for _, f := range weightFormats {
			for _, v := range opkit.Builds("proj_linear") {
				b.Run(fmt.Sprintf("%s/%v/%s", layer.name, f, v.Name), func(b *testing.B) {
					cfg := layer.LinearConfig
					cfg.Weights, cfg.Out, cfg.Variant = f, tensor.BF16, v.Name
					op, err := projection.NewLinear(dev, cfg)
					if errors.Is(err, vk.ErrMissingFeature) {
						b.Skip(err)
					}
					require.NoError(b, err)
					l := newLinearBench(b, dev, cfg)
					for _, tokens := range []int{1, 2, 4, 5, 8, 16, 32, 64, 128, 256, 1024, 4096} {
						if dev.Adapter().Type == vk.TypeCPU && tokens > 1 {
							break
						}
						b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) { l.run(b, dev, op, tokens) })
					}
				})
			}
		}
	}
}

// BenchmarkLinearTilings times kinds of tiles against each other: BM, BN, BK, WM, WN.
func BenchmarkLinearTilings(all *testing.B) {
	dev := testkit.Device(all)
	if dev.Adapter().Type == vk.TypeCPU {
		all.Skip("for GPUs")
	}
	for _, layer := range benchLayers[:3] {
		for _, f := range weightFormats[1:] {
			for _, v := range []string{opkit.CMB, opkit.CM} {
				cfg := layer.LinearConfig
				cfg.Weights, cfg.Out, cfg.Variant = f, tensor.BF16, v
				l := linearBench{}
				for _, c := range []struct {
					tokens int
					tiling [5]int
				}{
					{4096, [5]int{128, 128, 32, 64, 64}}, {4096, [5]int{256, 128, 32, 64, 64}}, {4096, [5]int{256, 128, 16, 64, 64}}, {4096, [5]int{128, 128, 16, 64, 64}},
					{4096, [5]int{128, 128, 32, 32, 64}}, {4096, [5]int{256, 64, 16, 64, 32}}, {4096, [5]int{128, 64, 32, 64, 32}}, {4096, [5]int{128, 64, 64, 64, 32}},
					{32, [5]int{32, 64, 64, 32, 16}}, {32, [5]int{32, 64, 128, 32, 16}}, {32, [5]int{32, 128, 64, 32, 32}}, {32, [5]int{32, 128, 32, 32, 32}},
					{64, [5]int{64, 64, 64, 64, 16}}, {64, [5]int{64, 64, 64, 32, 32}}, {64, [5]int{64, 64, 32, 32, 32}}, {64, [5]int{64, 128, 32, 32, 64}},
				} {
					all.Run(fmt.Sprintf("%s/%v/%s/tokens=%d/%v", layer.name, f, v, c.tokens, c.tiling), func(b *testing.B) {
						op, err := projection.NewLinearTiled(dev, cfg, c.tiling)
						if errors.Is(err, vk.ErrMissingFeature) {
							b.Skip(err)
						}
						require.NoError(b, err)
						if l.sets == nil {
							l = newLinearBench(all, dev, cfg) // for the kinds that follow, too
						}
						l.run(b, dev, op, c.tokens)
					})
				}
			}
		}
	}
}

// BenchmarkLinearChain times wo_a and wo_b of V4-Flash in one launch and in two.
func BenchmarkLinearChain(b *testing.B) {
	dev := testkit.Device(b)
	if dev.Adapter().Type == vk.TypeCPU {
		b.Skip("for GPUs")
	}
	for _, f := range weightFormats {
		for tokens := 1; tokens <= projection.LinearChainTokens; tokens++ {
			one, two := benchLayers[3].LinearConfig, benchLayers[2].LinearConfig
			one.Weights, one.Out, one.MaxTokens, two.Weights, two.Out, two.MaxTokens = f, tensor.BF16, tokens, f, tensor.BF16, tokens
			first, second := must[*projection.Linear](b)(projection.NewLinear(dev, one)), must[*projection.Linear](b)(projection.NewLinear(dev, two))
			x, y := newLinearBench(b, dev, one), newLinearBench(b, dev, two)
			chain, err := projection.NewLinearChain(first, second, tokens)
			require.False(b, err != nil && !errors.Is(err, vk.ErrMissingFeature), "%v", err)
			a := projection.LinearChainArgs{
				First: projection.LinearArgs{X: upload(b, dev, tensor.BF16, normal(rand.New(rand.NewPCG(3, 4)), tokens*one.Groups*one.K), tokens, one.Groups, one.K),
					Out: upload(b, dev, tensor.BF16, make([]uint16, tokens*two.K), tokens, two.K)},
				Second: projection.LinearArgs{Out: upload(b, dev, tensor.BF16, make([]uint16, tokens*two.N), tokens, two.N)},
			}
			a.Second.X = a.First.Out
			bytes := one.Weights.DataBytes(one.N*one.Groups, one.K) + two.Weights.DataBytes(two.N, two.K)
			run := func(name string, record func(rec *vk.Recorder, a projection.LinearChainArgs) error) {
				b.Run(fmt.Sprintf("%v/tokens=%d/%s", f, tokens, name), func(b *testing.B) {
					timeLinear(b, dev, bytes, 0, func(rec *vk.Recorder, i int) error {
						a := a
						a.First.W, a.Second.W = x.sets[i%len(x.sets)], y.sets[i%len(y.sets)]
						return record(rec, a)
					})
				})
			}
			run("apart", func(rec *vk.Recorder, a projection.LinearChainArgs) error {
				return errors.Join(first.Record(rec, a.First), second.Record(rec, a.Second))
			})
			if err == nil {
				a.State = must[tensor.Tensor](b)(chain.NewState(b.Context(), "bench", tokens))
				b.Cleanup(func() { a.State.Close() })
				run("together", chain.Record)
			}
		}
	}
}
