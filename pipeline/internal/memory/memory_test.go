package memory

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestList demands tensors of one buffer that do not overlap, and that Fits finds the first that is
// too large, and whether all are.
func TestList(t *testing.T) {
	dev := testkit.Device(t)
	var a, b tensor.Tensor
	var list List
	arena, err := list.Allocate(dev, vk.DeviceLocal, "test")
	require.NoError(t, err)
	require.Nil(t, arena, "of an empty list")
	list.Add(&a, tensor.U8, 3)
	list.Add(&b, tensor.F32, 200, 5)
	arena, err = list.Allocate(dev, vk.DeviceLocal, "test")
	require.NoError(t, err)
	defer arena.Close()
	assert.Equal(t, []int{200, 5}, b.Shape)
	assert.Same(t, a.Buffer, b.Buffer)
	assert.GreaterOrEqual(t, b.Offset, a.Offset+a.Bytes())

	size := tensor.Need(tensor.F32, 200, 5)
	for _, most := range []uint64{0, list.Bytes()} {
		assert.NoError(t, list.Fits("test", &vk.Caps{MaxStorageBufferRange: size, MaxBuffer: most}))
	}
	var wrong *vk.ArgumentError
	require.ErrorAs(t, list.Fits("test", &vk.Caps{MaxStorageBufferRange: size - 1}), &wrong)
	assert.Equal(t, "a tensor [200 5]", wrong.Arg)
	require.ErrorAs(t, list.Fits("test", &vk.Caps{MaxStorageBufferRange: size, MaxBuffer: list.Bytes() - 1}), &wrong)
	assert.Equal(t, "a buffer of 2 tensors", wrong.Arg)
}
