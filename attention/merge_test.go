package attention

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// The parts of a row, joined, are the row: for any division of its keys, with empty parts, and
// whatever reference exponent a part is relative to. The kernel is held by TestDecodeForms.
func TestMergeRef(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	q := make([]uint16, cache.D)
	for d := range q {
		q[d] = numfmt.BF16Encode(float32(rng.NormFloat64()))
	}
	keys := make([][]float32, 40)
	for j := range keys {
		keys[j] = make([]float32, cache.D)
		for d := range keys[j] {
			keys[j][d] = numfmt.BF16Round(float32(rng.NormFloat64()))
		}
	}
	for _, sink := range []float64{math.Inf(-1), 0, 3, math.Inf(1), 1e38} {
		want := make([]float32, cache.D)
		_, wantLSE := attendRef(want, q, keys, keys, sink, DefaultScale)
		var m, l []float64
		var acc [][]float64
		for _, part := range [][][]float32{keys[:1], nil, keys[1:20], keys[20:], nil} {
			m, l, acc = append(m, -1e30), append(l, 0), append(acc, nil)
			if part == nil {
				continue // l = 0: neither m nor acc may matter
			}
			out := make([]float32, cache.D)
			_, lse := attendRef(out, q, part, part, math.Inf(-1), DefaultScale)
			i := len(m) - 1
			m[i] = rng.NormFloat64() * 3
			l[i] = math.Exp2(float64(lse)/math.Ln2 - m[i])
			acc[i] = make([]float64, cache.D)
			for d := range cache.D {
				acc[i][d] = float64(out[d]) * l[i]
			}
		}
		got, lse := mergeRef(m, l, acc, sink)
		assert.False(t, math.Abs(lse-float64(wantLSE)) > 1e-5, "sink %g: lse %g, want %g", sink, lse, wantLSE)
		for d := range cache.D {
			if math.Abs(got[d]-float64(want[d])) > 1e-6 {
				t.Fatalf("sink %g, dim %d: %g, want %g", sink, d, got[d], want[d])
			}
		}
	}
	if out, lse := mergeRef([]float64{1, 2}, []float64{0, 0}, [][]float64{nil, nil}, 0); !math.IsInf(lse, 1) || out[0] != 0 {
		t.Errorf("empty parts: lse %g, out %g", lse, out[0])
	}
}
