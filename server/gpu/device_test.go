package gpu

import (
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// device is the device that tests run on. Messages of the validation layer fail the test.
func device(t testing.TB) *vk.Device { return testkit.Device(t) }
