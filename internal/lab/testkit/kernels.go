package testkit

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

// Unlaunched returns the kernels that a device was asked for and that nothing recorded launches. A
// kernel of a CPU's device is compiled when the first launch of it is recorded, which tells.
func Unlaunched(t testing.TB, dev *vk.Device) (names []string) {
	t.Helper()
	require.Equal(t, vk.TypeCPU, dev.Adapter().Type, "a device that compiles in the background")
	for _, k := range dev.Kernels() {
		if reflect.ValueOf(k).Elem().FieldByName("layout").IsNil() { // nil until it is compiled
			names = append(names, fmt.Sprint(k.Name(), " ", k.Constants()))
		}
	}
	return names
}
