package indexer_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// Tokens that share decoded keys get the bits that they get alone: tokens of one request and of
// several, in any order, whose pages may be missing, from any entry on.
func TestPromptBits(t *testing.T) {
	dev := testkit.Device(t)
	cases := [][4]int{{29, 1, 300, 0}, {29, 5, 301, 70}, {3, 3, 100, 0}, {41, 3, 150, 64}} // tokens, requests, keys, the first
	heads := map[cache.IndexKeyFormat]int{cache.IndexKeyFP8: 5, cache.IndexKeyMXFP4: 3}
	if dev.Adapter().Type != vk.TypeCPU {
		cases = append(cases, [4]int{520, 2, 9000, 0})
		heads[cache.IndexKeyFP8], heads[cache.IndexKeyMXFP4] = 64, 64
	}
	for format, page := range map[cache.IndexKeyFormat]int{cache.IndexKeyFP8: 16, cache.IndexKeyMXFP4: 64} {
		for i, c := range cases {
			t.Run(fmt.Sprint(format, c), func(t *testing.T) {
				tokens, requests, keys := c[0], c[1], c[2]
				x := randomHost(t, format, rand.New(rand.NewPCG(8, uint64(i))), tokens, requests, heads[format], keys, page)
				x.BlockTable[0], x.BlockTable[len(x.BlockTable)/2] = 1<<20, -1
				x.First, x.Width = c[3], keys-c[3]
				if i == 3 {
					x.TokenToReq[5] = 77
					for j := 20; j < 40; j++ {
						x.TokenToReq[j] = int32(j % 3)
					}
				}
				alone, err := indexer.NewLogits(dev, logitsConfig(x, opkit.CM))
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				require.False(t, indexer.Shared(alone))
				op := must[*indexer.Logits](t)(indexer.NewLogits(dev, logitsConfig(x, opkit.CM)))
				if !indexer.Share(op) {
					t.Skip("matrices lie in other lanes")
				}
				want, got := logits(t, dev, x, alone), logits(t, dev, x, op)
				for j := range want {
					if math.Float32bits(got[j]) != math.Float32bits(want[j]) {
						t.Fatalf("token %d, entry %d: %g, alone %g", j/x.Width, j%x.Width+x.First, got[j], want[j])
					}
				}
			})
		}
	}
}
