package gpu

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

// matricesOf are those of the device; a test that finds none is skipped.
func matricesOf(t testing.TB, dev *vk.Device) *matrices {
	t.Helper()
	halves, err := keepsHalves(dev)
	require.NoError(t, err)
	d := fitMatrices(dev.Caps())
	if d == nil || !halves {
		require.NotEqual(t, "1", os.Getenv("VKMLA_TEST_REQUIRE_CM"))
		t.Skip("no matrices")
	}
	return d
}

// matrixFormats have, together, all formats that matrices multiply.
var matrixFormats = []formats{released,
	{routed: weights.FP8, shared: weights.MXFP4, gate: weights.F32, ends: weights.BF16},
	{ends: weights.BF16, stored: [3]string{"IQ2_XXS", "Q2_K", "Q8_0"}},
	{ends: weights.BF16, stored: [3]string{"Q4_K", "Q6_K", "Q8_0"}},
	{ends: weights.BF16, stored: [3]string{"MXFP4", "Q4_K", "F16"}}}

// byMatrices returns the outputs of experts by the processor, by kernels without matrices, and by
// matrices with tiles of `tile` tokens where these fit.
func byMatrices(t *testing.T, d *matrices, g *GPU, c *cpu.CPU, layer, padded, tile int, ids []int32, x []float32,
) (want, without, got []float32) {
	t.Helper()
	want = make([]float32, len(x))
	c.Experts(layer, &cpu.Streams{T: len(ids), IDs: ids}, x, want, nil)
	g.matrices, g.tiles = nil, usual
	without = outputs(t, g, layer, padded, ids, x)
	of := *d
	of.least, of.most = tile, tile
	g.matrices, g.tiles.matrices, g.tiles.tiles = &of, 0, 1
	return want, without, outputs(t, g, layer, padded, ids, x)
}

// TestMatrices compares experts by matrices with those of the processor and with kernels without,
// in all formats: steps with padding, tiles that are not full, experts without a token.
func TestMatrices(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(13, 14))
	d := matricesOf(t, dev)
	const most = 40
	for i, f := range matrixFormats {
		w := small(rng, f, 2)
		g, c := opened(t, dev, w, Options{MaxStep: most, Matrices: true})
		x, tile := normals(rng, most*w.Config.Hidden), d.least
		if i == 0 {
			tile *= 2
		}
		for k, s := range []struct{ padded, tokens int }{{most, most - 1}, {2, 1}} {
			ids, x := tokenIDs(rng, s.tokens, w.Config.Vocab), x[:s.tokens*w.Config.Hidden]
			want, without, got := byMatrices(t, d, g, c, (i+k)%2, s.padded, tile, ids, x)
			assert.Less(t, off(got, want), 4e-3, "formats %d, %+v", i, s)
			assert.Less(t, off(got, without), 4e-3, "formats %d, %+v", i, s)
			assert.False(t, slices.Equal(got, without), "formats %d, %+v: other kernels ran", i, s)
		}
	}
}

// TestRanges holds that experts by matrices are as exact as those without where numbers are as
// large and as small as matrices take, and that none run beyond. All tokens have the same experts.
func TestRanges(t *testing.T) {
	dev := device(t)
	d := matricesOf(t, dev)
	const T = 15
	for i, f := range matrixFormats {
		for _, is := range []struct {
			name         string
			up, down     float64 // largest numbers of W1 and W3, and of W2; 0: what they are
			norm, inputs float64 // factors
			limit        float32
			fits         bool
		}{
			{"large weights that are taken", mostWeight, mostWeight, 1. / 128, 1. / 256, 2, true},
			{"large gate and up", 4 * mostWeight, 0, 1, 1, 2, false},
			{"large down", 0, 1 << 22, 1, 1, 2, false},
			{"small gate and up that are taken", 2 * leastGated, 0, 1, 1, 2, true},
			{"small gate and up", leastGated / 2, 0, 1, 1, 2, false},
			{"small down that is taken", 0, 2 * leastWeight, 1, 1, 2, true},
			{"small down", 0, leastWeight / 2, 1, 1, 2, false},
			{"subnormal scales", 1. / (1 << 13), 1. / (1 << 11), 1, 1, 2, false},
			{"large inputs that are taken", 1. / 1024, 0, 512, 8192, 2, true},
			{"large inputs", 0, 0, 1 << 15, 1 << 15, 2, false},
			{"small inputs", 0, 0, 1. / (1 << 24), 1. / (1 << 24), 2, false},
			{"a high limit that is taken", 64, 0, 1, 1, 145, true},
			{"a high limit", 64, 0, 1, 1, 1000, false},
			{"no limit", 64, 0, 1, 1, 0, false},
		} {
			if is.down > 0 && is.down < leastWeight && f.stored[1] == "Q6_K" {
				continue // no f16 of its scales is so small
			}
			t.Run(fmt.Sprintf("%d/%s", i, is.name), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(15, uint64(i)))
				w := small(rng, f, 2)
				w.Config.Limit = is.limit
				l := &w.Layers[1]
				for _, m := range []*weights.Matrix{&l.Gate, &l.Shared.W1, &l.Shared.W3, &l.Shared.W2} {
					clear(m.Data)
				}
				copy(l.Bias, []float32{0, 1, 0, 1, 1})
				for k := range l.FFNNorm {
					l.FFNNorm[k] = float32(math.Min(math.Abs(float64(l.FFNNorm[k])), 1) * is.norm)
				}
				for e := range l.Experts {
					resize(&l.Experts[e].W1, is.up)
					resize(&l.Experts[e].W3, is.up)
					resize(&l.Experts[e].W2, is.down)
				}
				g, c := opened(t, dev, w, Options{MaxStep: T, Matrices: true})
				x := normals(rng, T*w.Config.Hidden)
				for k := range x {
					x[k] = numfmt.BF16Round(x[k] * float32(is.inputs))
				}
				require.Equal(t, is.fits, g.layers[1].routedFit)
				_, without, got := byMatrices(t, d, g, c, 1, T, d.least, tokenIDs(rng, T, w.Config.Vocab), x)
				exact := exactExperts(l, &w.Config, []int{1, 3, 4}, x)
				rounded := exact
				if g.layers[1].w1.format.whole() { // what is nearly 0 may get the other sign
					rounded = exactExperts(l, &w.Config, []int{1, 3, 4}, wholes(x, w.Config.Hidden))
				}
				assert.Less(t, off(without, rounded), 3e-3)
				assert.Less(t, off(got, exact), 1.02*off(without, exact))
				assert.NotEqual(t, is.fits, slices.Equal(got, without))
			})
		}
	}
}

// exactExperts computes in float64 what some routed experts of equal weights give, without rounding
// between.
func exactExperts(l *weights.Layer, c *weights.Config, chosen []int, x []float32) []float32 {
	product := func(m *weights.Matrix, x []float64) []float64 {
		y, row := make([]float64, m.N), make([]float32, m.K)
		for n := range y {
			m.Row(row, n)
			for k, w := range row {
				y[n] += float64(w) * x[k]
			}
		}
		return y
	}
	f := make([]float32, len(x))
	for t := range len(x) / c.Hidden {
		in, sum := make([]float64, c.Hidden), make([]float64, c.Hidden)
		for k := range in {
			in[k] = float64(x[t*c.Hidden+k])
		}
		for _, e := range chosen {
			e, limit := &l.Experts[e], cmp.Or(float64(c.Limit), math.Inf(1))
			h := product(&e.W1, in)
			for i, b := range product(&e.W3, in) {
				a := min(h[i], limit)
				h[i] = a / (1 + math.Exp(-a)) * max(min(b, limit), -limit) * float64(c.Factor) / float64(len(chosen))
			}
			for k, y := range product(&e.W2, h) {
				sum[k] += y
			}
		}
		for k, y := range sum {
			f[t*c.Hidden+k] = float32(y)
		}
	}
	return f
}

// resize multiplies a matrix by a power of two, so that its largest number is at most that.
func resize(m *weights.Matrix, largest float64) {
	if largest == 0 {
		return
	}
	var layout blockLayout
	now := float32(0)
	switch m.Format {
	case weights.FP8:
		now = 448 * slices.Max(m.BlockScales)
	case weights.MXFP4:
		now = largestMXFP4(m.Scales)
	default:
		layout = blockLayouts[m.Stored.Name]
		now = layout.largest(m.Data, m.Stored.Bytes)
	}
	e := int(math.Floor(math.Log2(largest / float64(now))))
	half := func(b []byte) {
		v := math.Ldexp(float64(numfmt.F16Decode(binary.LittleEndian.Uint16(b))), e)
		binary.LittleEndian.PutUint16(b, numfmt.F16Encode(float32(min(v, 65504))))
	}
	for k := range m.BlockScales {
		m.BlockScales[k] = float32(math.Ldexp(float64(m.BlockScales[k]), e))
	}
	for k := range m.Scales {
		m.Scales[k] = byte(int(m.Scales[k]) + e)
	}
	for at := 0; m.Stored != nil && at < len(m.Data); at += m.Stored.Bytes {
		if layout.format == mxfp4 {
			m.Data[at] = byte(int(m.Data[at]) + e)
			continue
		}
		for _, k := range map[string][]int{"Q8_0": {0}, "Q2_K": {80, 82}, "Q4_K": {0, 2}, "Q6_K": {208}, "IQ2_XXS": {0}}[m.Stored.Name] {
			half(m.Data[at+k:])
		}
	}
}

// BenchmarkMatrices times the experts of some layers of V4-Flash by matrices, with tiles of some
// tokens (0: without matrices).
func BenchmarkMatrices(b *testing.B) {
	dev := device(b)
	d := matricesOf(b, dev)
	for i, f := range [][2]string{{"Q2_K", "Q2_K"}, {"MXFP4", "MXFP4"}, {"IQ2_XXS", "Q2_K"}, {"Q4_K", "Q6_K"}} {
		g, err := New(b.Context(), dev, flash(2, f[0], f[1]), Options{MaxStep: 4096, Matrices: true})
		require.NoError(b, err)
		for _, T := range []int{1024, 4096, 64, 128, 256} {
			for _, tile := range []int{0, 16, 32, 64, 128} {
				if tile == 0 && T > 256 || T > 256 && tile == 16 || i > 0 && (T != 1024 || tile > 64) {
					continue
				}
				b.Run(fmt.Sprintf("%s/T=%d/tile=%d", strings.Join(f[:], ","), T, tile), func(b *testing.B) {
					if g.matrices = nil; tile > 0 {
						of := *d
						of.least, of.most = tile, tile
						g.matrices, g.tiles.matrices = &of, 0
						for k := range g.layers { // whatever random scales are
							g.layers[k].routedFit, g.layers[k].sharedFit = true, true
						}
					}
					var r Rates
					for range b.N {
						r, err = g.Measure(b.Context(), T)
						require.NoError(b, err)
					}
					b.ReportMetric(0, "ns/op")
					for name, x := range map[string]Rate{"all": r.Experts, "up": r.Up, "down": r.Down} {
						b.ReportMetric(x.Seconds*1e6/float64(len(g.layers)), "us/layer:"+name)
					}
				})
			}
		}
		require.NoError(b, g.Close())
	}
}
