package quantise_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/quantise"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// matrices of several kinds: of one size, over many powers of two within a block,
// with rows of very different size, with zeros.
var kinds = map[string]func(rng *rand.Rand, row int) float64{
	"normal":  func(rng *rand.Rand, _ int) float64 { return 0.02 * rng.NormFloat64() },
	"spread":  func(rng *rand.Rand, _ int) float64 { return rng.NormFloat64() * math.Exp2(40*rng.Float64()-30) },
	"rows":    func(rng *rand.Rand, row int) float64 { return rng.NormFloat64() * math.Exp2(float64(row%41-30)) },
	"sparse":  func(rng *rand.Rand, row int) float64 { return rng.NormFloat64() * float64(rng.IntN(40)/39*(row%3)) },
	"tiny":    func(rng *rand.Rand, _ int) float64 { return rng.NormFloat64() * 1e-38 },
	"huge":    func(rng *rand.Rand, _ int) float64 { return (2*rng.Float64() - 1) * 3e38 },
	"uniform": func(rng *rand.Rand, _ int) float64 { return 2*rng.Float64() - 1 },
}

func matrix(kind string, n, k int) []float32 {
	rng := rand.New(rand.NewPCG(1, uint64(n*k)))
	w := make([]float32, n*k)
	for i := range w {
		w[i] = numfmt.BF16Round(float32(kinds[kind](rng, i/k)))
	}
	return w
}

func relative(w, got []float64) float64 {
	d, s := 0.0, 0.0
	for i := range w {
		d += (w[i] - got[i]) * (w[i] - got[i])
		s += w[i] * w[i]
	}
	return math.Sqrt(d / s)
}

func TestFP8(t *testing.T) {
	for kind := range kinds {
		for _, shape := range [][2]int{{1, 8}, {128, 128}, {130, 264}, {261, 1000}} {
			for _, pow2 := range []bool{true, false} {
				n, k := shape[0], shape[1]
				w := matrix(kind, n, k)
				data, scales, err := quantise.FP8(w, n, k, quantise.Side, pow2)
				require.NoError(t, err)
				kb := (k + 127) / 128
				require.Equal(t, (n+127)/128*kb, len(scales), "scales")
				amax := make([]float32, len(scales))
				for i, x := range w {
					b := i/k/128*kb + i%k/128
					amax[b] = max(amax[b], quantise.AMax([]float32{x}))
				}
				exact, got := make([]float64, len(w)), make([]float64, len(w))
				for i, x := range w {
					b := i/k/128*kb + i%k/128
					exact[i], got[i] = float64(x), float64(numfmt.E4M3Decode(data[i]))*float64(scales[b])
					if bound := quantise.FP8Bound(x, amax[b]); !(math.Abs(got[i]-exact[i]) <= bound) {
						t.Fatalf("%s %v pow2 %v: %v became %v, further than %v", kind, shape, pow2, x, got[i], bound)
					}
				}
				e := relative(exact, got)
				assert.False(t, kind == "normal" && n > 100 && !(e > 0.015 && e < 0.03),
					"%s %v pow2 %v: relative error %v", kind, shape, pow2, e)
				for _, s := range scales {
					if frac, _ := math.Frexp(float64(s)); pow2 && frac != 0.5 {
						t.Fatalf("scale %v is no power of two", s)
					}
				}
			}
		}
	}
}

func TestNVFP4(t *testing.T) {
	for kind := range kinds {
		for _, shape := range [][2]int{{1, 16}, {17, 64}, {130, 272}} {
			for _, shared := range []float32{1, 3} {
				n, k := shape[0], shape[1]
				w := matrix(kind, n, k)
				amax := min(shared*quantise.AMax(w), math.MaxFloat32)
				data, scales, global, err := quantise.NVFP4(w, n, k, amax)
				require.NoError(t, err)
				exact, got := make([]float64, len(w)), make([]float64, len(w))
				for i, x := range w {
					block := w[i/16*16 : i/16*16+16]
					e, o := numfmt.E2M1Unpack(data[i/2])
					exact[i], got[i] = float64(x), float64(numfmt.E2M1Decode([]byte{e, o}[i%2]))*float64(numfmt.E4M3Decode(scales[i/16]))*float64(global)
					if bound := quantise.NVFP4Bound(x, quantise.AMax(block), amax); !(math.Abs(got[i]-exact[i]) <= bound) {
						t.Fatalf("%s %v: %v became %v, further than %v", kind, shape, x, got[i], bound)
					}
				}
				e := relative(exact, got)
				assert.False(t, kind == "normal" && n > 100 && !(e > 0.07 && e < 0.11),
					"%s %v: relative error %v", kind, shape, e)
			}
		}
	}
	_, scales, global, err := quantise.NVFP4(make([]float32, 32), 2, 16, 0)
	require.NoError(t, err, "a matrix of zeros: %v", scales)
	require.Equal(t, float32(1), global, "a matrix of zeros: %v", scales)
	assert.Equal(t, byte(0), scales[0], "a matrix of zeros: %v", scales)
}

func TestRefuses(t *testing.T) {
	nan := []float32{0, float32(math.NaN())}
	_, _, err := quantise.FP8(nan, 1, 2, quantise.Side, true)
	errs := []error{err}
	_, _, err = quantise.FP8(nan[:1], 1, 2, quantise.Side, true)
	errs = append(errs, err)
	_, _, _, err = quantise.NVFP4(make([]float32, 8), 1, 8, 0)
	errs = append(errs, err)
	w := make([]float32, 16)
	w[3] = 2
	_, _, _, err = quantise.NVFP4(w, 1, 16, 1)
	errs = append(errs, err)
	_, _, _, err = quantise.NVFP4(w, 1, 16, float32(math.Inf(1)))
	errs = append(errs, err)
	w[3] = float32(math.Inf(-1))
	_, _, _, err = quantise.NVFP4(w, 1, 16, 1)
	for i, err := range append(errs, err) {
		assert.ErrorIs(t, err, quantise.ErrArgument, "%d", i)
	}
}
