package attention_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// The forms of the builds without matrix units have the invocations and the shared memory that is
// reckoned with, and the smallest is what the kernels are without constants.
func TestPlainForms(t *testing.T) {
	for name, first := range map[string][]uint32{"attn_decode": {64, 2}, "attn_prefill": nil} {
		k, err := shaders.Get(name)
		require.NoError(t, err)
		m, err := spirv.Parse(k.SPIRV)
		require.NoError(t, err)
		for _, f := range attention.PlainForms() {
			constants := append(slices.Clone(first), f.Heads, f.Tile, f.Threads)
			got, err := m.SharedBytes(constants...)
			assert.NoError(t, err, "%s%v", name, constants)
			assert.Equal(t, f.Shared, got, "%s%v", name, constants)
			if got, err := m.LocalSize(constants...); err != nil || got != [3]uint32{f.Threads, 1, 1} {
				t.Errorf("%s%v: workgroups of %v, %v", name, constants, got, err)
			}
			got, err = m.SharedBytes()
			assert.False(t, f.Shared <= 16384 && (err != nil || got != f.Shared),
				"%s: %d bytes of shared memory, %v, want %d", name, got, err, f.Shared)
		}
	}
}
