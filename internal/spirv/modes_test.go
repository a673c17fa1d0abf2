package spirv_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// Every kernel with binary16 numbers asks for the modes, whatever else is in it; others, and what
// is no module, stay as they are.
func TestWithModes(t *testing.T) {
	const float16 = 9
	asked := 0
	for _, name := range shaders.Names() {
		k, err := shaders.Get(name)
		require.NoError(t, err)
		before, err := spirv.Parse(k.SPIRV)
		require.NoError(t, err)
		code := spirv.WithModes(k.SPIRV, spirv.PreserveDenorms, spirv.RoundNearest)
		if !before.HasCapability(float16) {
			assert.True(t, bytes.Equal(k.SPIRV, code), name)
			continue
		}
		asked++
		after, err := spirv.Parse(code)
		require.NoError(t, err, name)
		assert.Equal(t, append(before.Capabilities, 4464, 4467), after.Capabilities, name)
		assert.Len(t, code, len(k.SPIRV)+2*8+2*16, name)
		assert.GreaterOrEqual(t, before.Version[1], 4, "%s: the modes are an extension before 1.4", name)
		for cut := range 64 {
			spirv.WithModes(k.SPIRV[:4*cut], spirv.RoundNearest)
		}
	}
	assert.Positive(t, asked)
}
