package opkit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// A device is asked for a kernel when it is needed, once, and an error stays.
func TestLater(t *testing.T) {
	dev, err := testkit.Device(t).Adapter().Open(vk.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	p := opkit.Package("pkg")
	spec := opkit.Spec{Stem: "proj_linear_sum", Variant: opkit.Base, Bindings: []vk.Access{vk.Read, vk.Write}, Push: [6]uint32{}}
	later := p.Later(dev, spec)
	spec.Stem = "no kernel"
	missing := p.Later(dev, spec)
	assert.Empty(t, dev.Kernels())
	require.NoError(t, opkit.Ask(later))
	require.Len(t, dev.Kernels(), 1)
	got, err := later.Kernel()
	require.NoError(t, err)
	assert.Same(t, dev.Kernels()[0], got)
	for range 2 {
		assert.ErrorContains(t, opkit.Ask(later, missing), "no kernel")
	}
	assert.Equal(t, []string{"proj_linear_sum []"}, testkit.Unlaunched(t, dev))
}
