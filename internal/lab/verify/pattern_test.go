package verify

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/vk"
)

// TestPatterns holds which names a regular expression stands for, and that others stand for
// themselves.
func TestPatterns(t *testing.T) {
	seen := map[string]bool{}
	asked := []string{"touch", "~^fused_.*(fp8|rmsnorm)$", "~nothing"}
	for name, chosen := range map[string]bool{
		"touch": true, "touching": false, "fused_q_kv_rmsnorm": true, "fused_inv_rope_fp8_quant": false,
		"fused_indexer_q_rope_quant_fp8": true, "layer": false} {
		assert.Equal(t, chosen, want(asked, name, seen), name)
	}
	assert.Equal(t, map[string]bool{"touch": true, asked[1]: true}, seen)
	assert.NoError(t, CheckPatterns("verify", "op", asked))
	err := CheckPatterns("verify", "op", []string{"~("})
	assert.ErrorIs(t, err, vk.ErrArgument)
	assert.ErrorContains(t, err, "missing closing )")
	assert.False(t, Matches("~(", "("))
	assert.False(t, Matches("touch", "touch"), "no regular expression")
}
