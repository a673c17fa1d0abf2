package vk

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLoader holds the loader's names by system, and what is said where there is none.
func TestLoader(t *testing.T) {
	for system, first := range map[string]string{"linux": "libvulkan.so.1", "freebsd": "libvulkan.so.1",
		"windows": "vulkan-1.dll", "darwin": "libvulkan.1.dylib"} {
		assert.Equal(t, first, libraries(system)[0], system)
	}
	assert.Contains(t, libraries("darwin"), "libMoltenVK.dylib", "a driver in the loader's place")
	_, err := NewInstance(InstanceOptions{Library: "no-such-loader"})
	assert.ErrorIs(t, err, ErrNoLoader)
	assert.ErrorContains(t, err, "no-such-loader")
}

// TestPortability holds that the loader is asked for drivers that lack parts of Vulkan, and that
// it still lists the others.
func TestPortability(t *testing.T) {
	gipa, err := load("")
	require.NoError(t, err)
	assert.False(t, hasExtension(gipa, "", "VK_KHR_no_such_extension"))
	if !hasExtension(gipa, "", portability) {
		t.Skip("the loader is older than the extension")
	}
	in, err := NewInstance(InstanceOptions{AppName: "test", Validation: ValidationOff})
	require.NoError(t, err)
	defer in.Close()
	assert.NotEmpty(t, in.Adapters())
}
