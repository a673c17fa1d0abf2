package attention_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// On demand, a Decoder asks for one attention kernel, and for one that joins parts where rows are
// split and it joins them itself.
func TestDecodeOnDemand(t *testing.T) {
	for _, d := range knowncaps.Devices() {
		t.Run(d.Name, func(t *testing.T) {
			for _, tokens := range []int{1, 8, 64, 1000} {
				dev := testkit.As(t, d)
				op, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: 64, WindowPage: 64, CompressedPage: 64, OnDemand: true})
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				assert.Empty(t, dev.Kernels())
				err = op.PrepareParts(tokens, 128, 512)
				if errors.Is(err, vk.ErrMissingFeature) {
					t.Skip(err)
				}
				require.NoError(t, err)
				assert.Len(t, dev.Kernels(), 1, "%d tokens in parts", tokens)
				require.NoError(t, op.Prepare(tokens, 128, 512))
				assert.Len(t, dev.Kernels(), 1+min(op.Splits(tokens, 128, 512)-1, 1), "%d tokens", tokens)
			}
		})
	}
}
