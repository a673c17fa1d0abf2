package indexer_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// On demand, a Select asks for one kernel that scores, and for those that the selection of one
// number of tokens and entries launches.
func TestSelectOnDemand(t *testing.T) {
	for _, d := range knowncaps.Devices() {
		t.Run(d.Name, func(t *testing.T) {
			for _, c := range []struct{ tokens, entries int }{{1, 1000}, {1, 8000}, {8, 8000}, {32, 30000}, {1, 200000}, {100, 100}} {
				dev := testkit.As(t, d)
				op, err := indexer.NewSelect(dev, indexer.SelectConfig{K: 512, SlotPage: 64, OnDemand: true,
					Logits: indexer.LogitsConfig{Heads: 64, Format: cache.IndexKeyFP8, Page: 64}})
				if errors.Is(err, vk.ErrMissingFeature) || errors.Is(err, vk.ErrArgument) {
					t.Skip(err)
				}
				require.NoError(t, err)
				assert.Empty(t, dev.Kernels())
				err = op.Prepare(c.tokens, c.entries, true)
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				scores, picks := 0, 0
				for _, k := range dev.Kernels() {
					if strings.HasPrefix(k.Name(), "idx_logits") {
						scores++
					} else {
						picks++
					}
				}
				assert.Equal(t, 1, scores, "%+v", c)
				assert.True(t, picks == 1 || picks == 2, "%+v: %d kernels", c, picks)
				assert.ErrorIs(t, op.Prepare(0, c.entries, true), vk.ErrArgument)
				assert.ErrorIs(t, op.Prepare(c.tokens, -1, true), vk.ErrArgument)
			}
		})
	}
}
