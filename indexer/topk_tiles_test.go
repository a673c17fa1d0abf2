package indexer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Selections by the tops of tiles, with what a row does not have poisoned: rows of all
// lengths around K and whole tiles, ties across tiles, equal rows, infinities and NaN.
func TestTopKTiles(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 31))
	for _, c := range []struct{ n, k, tile int }{
		{4096, 64, 16}, {4100, 64, 8}, {20480, 512, 16}, {2048, 1, 16}, {1024, 100, 8}, {9232, 2048, 4}, {40, 3, 16}, {4, 1, 8},
	} {
		record, ok, err := indexer.TilesTopK(dev, c.k, c.tile)
		require.NoError(t, err)
		if !ok {
			t.Skip("the device cannot")
		}
		t.Run(fmt.Sprintf("n=%d/k=%d/tile=%d", c.n, c.k, c.tile), func(t *testing.T) {
			lens := []int32{int32(c.n), 0, -1, 1, int32(c.k), int32(c.k + 1), int32(c.n - 1), int32(c.n + 5), int32(c.k * c.tile), int32(c.k*c.tile + 1), int32(rng.IntN(c.n))}
			width := (c.n + c.tile*4 - 1) / (c.tile * 4) * 4
			logits, tops := make([]float32, len(lens)*c.n), make([]int32, len(lens)*width)
			for r := range lens {
				row := logits[r*c.n:][:c.n]
				for i := range row {
					switch {
					case r%4 == 1:
						row[i] = 2 // all tie
					case r%4 == 2:
						row[i] = float32(rng.IntN(5) - 2)
					case r%4 == 3 && i%3 == 0:
						row[i] = []float32{float32(math.Inf(-1)), float32(math.NaN()), float32(math.Copysign(0, -1)), 0}[rng.IntN(4)]
					default:
						row[i] = float32(rng.NormFloat64())
					}
				}
				end := min(max(int(lens[r]), 0), c.n)
				for i := range width {
					tops[r*width+i] = math.MaxInt32
				}
				for i := 0; i*c.tile < end; i++ {
					top := int32(math.MinInt32)
					for _, v := range row[i*c.tile : min((i+1)*c.tile, end)] {
						if v != v {
							v = float32(math.Inf(-1))
						}
						x := int32(math.Float32bits(v))
						top = max(top, x^(x>>31&math.MaxInt32))
					}
					tops[r*width+i] = top
				}
				for i := end; i < c.n; i++ {
					row[i] = float32(math.Inf(1))
				}
			}
			out := upload(t, dev, tensor.I32, slices.Repeat([]int32{-7}, len(lens)*c.k), len(lens), c.k)
			l, tp, ln := upload(t, dev, tensor.F32, logits, len(lens), c.n), upload(t, dev, tensor.I32, tops, len(lens), width), upload(t, dev, tensor.I32, lens, len(lens))
			do(t, dev, func(rec *vk.Recorder) error { return record(rec, l, tp, ln, out) })
			got, want := download[int32](t, out), indexer.TopKRef(logits, c.n, lens, c.k)
			for r := range lens {
				if !slices.Equal(got[r*c.k:][:c.k], want[r*c.k:][:c.k]) {
					t.Errorf("row %d of length %d: the selection differs", r, lens[r])
				}
			}
		})
	}
}
