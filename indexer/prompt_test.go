package indexer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestPromptBits(t *testing.T) {
	dev := testkit.Device(t)
	heads := []int{16, 3}
	if dev.Adapter().Type != vk.TypeCPU {
		heads = []int{64, 33}
	}
	for _, format := range indexFormats {
		for i, c := range []struct{ tokens, requests, keys, page, first, heads int }{
			{29, 1, 1000, 64, 0, heads[0]}, {29, 5, 700, 16, 64, heads[1]}, {8, 1, 70, 64, 0, heads[1]}, {3, 3, 500, 32, 0, heads[0]}, {70, 3, 300, 256, 0, heads[0]},
		} {
			t.Run(fmt.Sprint(format, i), func(t *testing.T) {
				x := randomHost(t, format, rand.New(rand.NewPCG(8, uint64(i))), c.tokens, c.requests, c.heads, c.keys, c.page)
				x.BlockTable[len(x.BlockTable)/2] = -1
				x.BlockTable[0] = 1 << 20
				x.First, x.Width = c.first, c.keys-c.first
				if c.tokens == 70 {
					x.TokenToReq[5] = 77
					for i := 30; i < 50; i++ {
						x.TokenToReq[i] = int32(i % 3)
					}
				}
				os.Setenv("VKX", "")
				a := logits(t, dev, x, must[*indexer.Logits](t)(indexer.NewLogits(dev, logitsConfig(x, ""))))
				for _, vkx := range []string{"prompt=1"} {
					os.Setenv("VKX", vkx)
					op := must[*indexer.Logits](t)(indexer.NewLogits(dev, logitsConfig(x, "")))
					require.True(t, indexer.Grouped(op))
					b := logits(t, dev, x, op)
					os.Setenv("VKX", "")
					n := 0
					for j := range a {
						if math.Float32bits(a[j]) != math.Float32bits(b[j]) {
							if n == 0 {
								t.Errorf("%s token %d entry %d: %g %g (%x %x)", vkx, j/x.Width, j%x.Width, a[j], b[j], math.Float32bits(a[j]), math.Float32bits(b[j]))
							}
							n++
						}
					}
					require.Zero(t, n)
				}
			})
		}
	}
}
