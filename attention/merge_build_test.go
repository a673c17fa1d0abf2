package attention_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Every build of attn_merge joins every number of parts, those that are empty and hold anything
// among them.
func TestMergeBuilds(t *testing.T) {
	dev := testkit.Device(t)
	const tokens, heads = 2, 3
	for _, v := range attention.MergeVariants {
		if len(dev.Caps().Missing(v.Requires)) > 0 {
			continue
		}
		for _, splits := range []int{2, 3, 4, 5, 8, 9, 20, 21, 33, attention.MaxSplits} {
			t.Run(subtest(v.Name, splits), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(testkit.Seed(t), uint64(splits)))
				n := tokens * splits * heads
				ml, acc, sink := make([]float32, 4*n), make([]float32, n*cache.D), make([]float32, heads)
				for i := range n {
					empty := rng.IntN(4) == 0 || i%heads == 2 && i < splits*heads // all parts of one head
					ml[4*i], ml[4*i+1] = float32(rng.NormFloat64()*9), float32(rng.Float64()+1)
					ml[4*i+2] = ml[4*i] + float32(rng.Float64())
					if empty {
						ml[4*i+1], ml[4*i] = 0, 200
					}
					for d := range cache.D {
						acc[i*cache.D+d] = float32(rng.NormFloat64())
						if empty {
							acc[i*cache.D+d] = float32(math.NaN())
						}
					}
				}
				for h := range sink {
					sink[h] = float32(rng.NormFloat64())
				}
				r := verify.NewRig(t.Context(), dev)
				defer r.Close()
				a := attention.DecodeArgs{Out: r.Out(tensor.BF16, tokens, heads, cache.D), LSE: r.Out(tensor.F32, tokens, heads), Sink: r.In(vectors.FromF32(sink, heads), tensor.F32)}
				top := r.Out(tensor.F32, tokens, heads)
				parts := r.In(vectors.FromF32(acc, tokens, splits, heads, cache.D), tensor.F32)
				states := r.In(vectors.FromF32(ml, n, 4), tensor.F32)
				r.Do(func(rec *vk.Recorder) error { return attention.Merge(dev, v.Name, rec, states, parts, a, top) })
				got := must[verify.Arrays](t)(r.Results(map[string]tensor.Tensor{"out": a.Out, "lse": a.LSE, "top": top}))
				for i := range tokens * heads {
					token, h := i/heads, i%heads
					var m, l []float64
					var rows [][]float64
					want := math.Inf(-1)
					for s := range splits {
						at := (token*splits+s)*heads + h
						row := make([]float64, cache.D)
						for d := range row {
							row[d] = float64(acc[at*cache.D+d])
						}
						m, l, rows = append(m, float64(ml[4*at])), append(l, float64(ml[4*at+1])), append(rows, row)
						if ml[4*at+1] > 0 {
							want = max(want, float64(ml[4*at+2])*math.Ln2)
						}
					}
					out, lse := attention.MergeRef(m, l, rows, float64(sink[h]))
					x := float64(got["top"].F32()[i])
					assert.False(t, x != want && !(math.Abs(x-want) < 1e-5), "row %d: maximum %g, want %g", i, x, want)
					x = float64(got["lse"].F32()[i])
					assert.False(t, x != lse && !(math.Abs(x-lse) < 1e-5), "row %d: lse %g, want %g", i, x, lse)
					for d, w := range out {
						x := float64(numfmt.BF16Decode(got["out"].U16()[i*cache.D+d]))
						if !(math.Abs(x-w) <= math.Abs(w)/250+1e-6) {
							t.Fatalf("row %d, dim %d: %g, want %g", i, d, x, w)
						}
					}
				}
			})
		}
	}
}
