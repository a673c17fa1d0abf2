package indexer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// A launch that scores and picks gives what scores and selection in launches of their own do,
// wherever shares and slices end, and leaves its counters 0.
func TestSelectPicks(t *testing.T) {
	dev := testkit.Device(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 17))
	for _, c := range []struct {
		format                    cache.IndexKeyFormat
		tokens, heads, entries, k int
		workgroups, slots, absent int // slots of a page of the other cache, or 0; pages that are not there
	}{
		{cache.IndexKeyFP8, 1, 8, 700, 61, 0, 0, 0},
		{cache.IndexKeyFP8, 1, 8, 15997, 512, 135, 64, 0},
		{cache.IndexKeyFP8, 2, 3, 12001, 512, 47, 64, 3},
		{cache.IndexKeyFP8, 7, 8, 15996, 512, 64, 0, 70},
		{cache.IndexKeyFP8, 11, 5, 7001, 61, 135, 3, 0},
		{cache.IndexKeyMXFP4, 5, 8, 12160, 511, 132, 64, 0},
	} {
		t.Run(fmt.Sprintf("%v/%d/%d", c.format, c.tokens, c.entries), func(t *testing.T) {
			cfg := indexer.SelectConfig{K: c.k, Segment: 1 << 17, Workgroups: c.workgroups, SlotPage: c.slots, Logits: indexer.LogitsConfig{
				Heads: c.heads, Format: c.format, Page: 64, Workgroups: c.workgroups, Raw: true, Few: true}}
			op, err := indexer.NewSelect(dev, cfg)
			if errors.Is(err, vk.ErrMissingFeature) {
				t.Skip(err)
			}
			require.NoError(t, err)
			if n := op.PickSlices(c.tokens, c.entries); n == 0 && dev.Adapter().Type != vk.TypeCPU {
				t.Skip("no room for keys beside the scores")
			} else {
				require.Positive(t, n, "slices of a row that picks")
			}
			s := newRawScene(t, c.format, rng, c.tokens, c.heads, c.entries)
			for i := range s.Lens {
				ends := []int{c.entries, 0, c.k, c.k + 1, c.entries - 1, c.entries / 2, c.k + 50, rng.IntN(c.entries), -3, c.entries + 5}
				s.Lens[i] = int32(ends[i%len(ends)])
			}
			for i := range s.BlockTable[:c.absent] {
				s.BlockTable[i] = -1
			}
			if c.slots > 0 {
				for range 10 * max(c.tokens/2, 1) { // a short table, with pages that are not there
					s.slots = append(s.slots, int32(rng.IntN(1000))-50)
				}
			}
			got := s.results(t, dev, true, nil, op, c.k)
			cfg.Logits.Raw = false
			plain := must[*indexer.Select](t)(indexer.NewSelect(dev, cfg))
			require.Zero(t, plain.PickSlices(c.tokens, c.entries))
			want := s.results(t, dev, false, nil, plain, c.k)
			require.Len(t, got, len(want))
			for name, x := range want {
				assert.Equal(t, x.I32(), got[name].I32(), name)
			}
			for _, n := range got["arrived"].I32() {
				require.Zero(t, n, "counters")
			}
		})
	}
}
