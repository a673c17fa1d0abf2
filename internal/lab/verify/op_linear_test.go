package verify

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/projection"
)

// TestLinearWhole plants a fault that no single sum shows: of each f16 scale the last four bits are
// lost. Weights that are rounded as kernels may round them pass.
func TestLinearWhole(t *testing.T) {
	op, _ := Lookup("linear")
	for _, f := range blockFormats {
		rng := rand.New(rand.NewPCG(1, uint64(f)))
		c := randomLinearCase(rng, linearShape{tokens: 16, groups: 1, n: 128, k: 768, f32: true}, f)
		want, err := op.Ref(c)
		require.NoError(t, err)
		assert.True(t, op.Compare(c, roundedLinear(t, c), want).Pass, "%v: weights rounded to bf16", f)

		cut, scales := c, c.In["w_scale"].Clone()
		for at := 0; at < len(scales.Data); at += 2 {
			if f == projection.FormatQ8_0 || at%16 < 4 { // Q4_K has two, then others
				scales.Data[at] &^= 15
			}
		}
		cut.In = maps.Clone(c.In)
		cut.In["w_scale"] = scales
		got, err := op.Ref(cut)
		require.NoError(t, err)
		r := op.Compare(c, got, want)
		assert.False(t, r.Pass, "%v: scales that lost bits", f)
		assert.Contains(t, r.Detail, "calc_diff", "%v", f)
	}
}

// roundedLinear is the reference with weights rounded to bf16.
func roundedLinear(t *testing.T, c Case) Arrays {
	t.Helper()
	h, err := readLinear(c)
	require.NoError(t, err)
	b := projection.LinearHost{T: h.T, Groups: h.Groups, N: h.N, K: h.K, Weights: projection.FormatBF16, X: h.X}
	for row := range h.Groups * h.N {
		for k := range h.K {
			b.Data = binary.LittleEndian.AppendUint16(b.Data, numfmt.BF16Encode(float32(h.Weight(row, k))))
		}
	}
	sums := make([]float64, h.T*h.Groups*h.N)
	require.NoError(t, projection.LinearRef(b, sums))
	y := make([]float32, len(sums))
	for i, v := range sums {
		y[i] = float32(v)
	}
	return Arrays{"y": vectors.FromF32(y, h.T, h.Groups*h.N)}
}
