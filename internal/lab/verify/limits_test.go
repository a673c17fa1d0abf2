package verify_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

// What a device's limits forbid is skipped with what they allow, and what they allow is not.
func TestLimits(t *testing.T) {
	d := knowncaps.Device{Name: "few buffers", Type: vk.TypeCPU, Caps: testkit.Device(t).Adapter().Caps}
	d.Caps.MaxStorageBuffers = 4
	dev := testkit.As(t, d)
	for name, o := range map[string]verify.Options{
		"recorded": {Vectors: []string{"../../../testdata/golden"}},
		"random":   {Most: 2, Seed: 1},
	} {
		o.Ops = []string{"indexer_topk", "get_compressed_slot_mapping"}
		status := map[string]map[verify.Status]bool{}
		_, err := verify.Run(t.Context(), dev, o, func(r verify.Row) {
			if status[r.Op] == nil {
				status[r.Op] = map[verify.Status]bool{}
			}
			status[r.Op][r.Status] = true
			if r.Op == "indexer_topk" {
				assert.Contains(t, r.Detail, "device allows 4 storage buffers, this needs 9 storage buffers", name)
			}
		})
		require.NoError(t, err, name)
		assert.Equal(t, map[string]map[verify.Status]bool{"indexer_topk": {verify.Skip: true},
			"get_compressed_slot_mapping": {verify.Pass: true}}, status, name)
	}
}
