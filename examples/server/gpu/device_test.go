package gpu

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

// device opens the device that tests run on, with the validation layer where it is installed: its
// messages fail the test.
func device(t testing.TB) *vk.Device {
	t.Helper()
	var mu sync.Mutex
	var messages []vk.Message
	o := vk.InstanceOptions{AppName: "server test"}
	if _, benchmark := t.(*testing.B); vk.HasValidation() && !benchmark && os.Getenv("VKMLA_TEST_VALIDATION") != "off" {
		o.Validation = vk.ValidationCore
		if os.Getenv("VKMLA_TEST_VALIDATION") == "sync" {
			o.Validation = vk.ValidationSync
		}
		o.OnMessage = func(m vk.Message) {
			mu.Lock()
			defer mu.Unlock()
			messages = append(messages, m)
		}
	}
	in, err := vk.NewInstance(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		in.Close()
		mu.Lock()
		defer mu.Unlock()
		assert.Empty(t, messages, "the validation layer")
	})
	adapter, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	dev, err := adapter.Open(vk.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	return dev
}
