package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/formula"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
)

// asKept rounds what goes into products to bf16, and rows that are kept to what a record of
// DeepSeek-V4 makes of them.
func asKept(product string, x []float64) []float64 {
	bits, slot, y := make([]uint16, len(x)), make([]byte, cache.RecordV4.SlotBytes()), make([]float64, len(x))
	for i, v := range x {
		bits[i] = numfmt.BF16Encode(float32(v))
	}
	if strings.HasSuffix(product, ".cache") {
		data, scales := slot[:cache.RecordV4.RowBytes()], slot[cache.RecordV4.RowBytes():]
		cache.RecordV4.EncodeRef(data, scales, bits)
		cache.RecordV4.DecodeRef(bits, data, scales)
	}
	for i, v := range bits {
		y[i] = float64(numfmt.BF16Decode(v))
	}
	return y
}

// TestDSparkFormula compares the draft block of random checkpoints of DeepSeek-V4 with its
// definition, in an engine of the whole model: after no context, and after contexts shorter and
// longer than the window, the last of whose tokens were taken back. Queries and weights of rows,
// which the definition does not round, make 0.006 to 0.023.
func TestDSparkFormula(t *testing.T) {
	testkit.WithoutMatrices(t)
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testkit.Seed(t)+seed, 45))
			c, m, err := fakemodel.RandomDSpark(rng)
			require.NoError(t, err)
			x := draftingOf(t, m, c, options{MaxSessions: 2, MaxTokens: 2*c.Window + 60, MaxStep: 2*c.Window + 60, Rewind: 9})
			require.Equal(t, c, x.c)
			x.rng = rng
			t.Logf("window %d, blocks of %d, %d layers draft, hidden %d", c.Window, c.DraftBlock, x.e.Layers()-x.first, c.Hidden)
			s, context := must[*pipeline.Session](t)(x.e.Open()), make([][]float32, x.e.Layers()-x.first)
			for _, n := range []int{0, 1, c.Window, 1 + c.Window/2 + rng.IntN(20)} {
				if n > 0 {
					back := rng.IntN(min(n, 9))
					hidden := x.all(n)
					must[[]pipeline.Appended](t)(s.Append(t.Context(), hidden))
					require.NoError(t, s.Truncate(s.Len()-back))
					for k, h := range hidden[x.first:] {
						context[k] = append(context[k], h[:(n-back)*c.Hidden]...)
					}
				}
				block := x.hidden(c.DraftBlock)
				for k, got := range x.draft(t, s, block) {
					var want []float32
					for _, row := range formula.Draft(c, x.number(k), m.Values, asKept, context[k], block[k]) {
						for _, v := range row {
							want = append(want, float32(v))
						}
					}
					assert.Less(t, distance(got, want), 0.04, "layer %d after %d tokens", k, s.Len())
				}
			}
		})
	}
}
