package opkit

import "github.com/vkmla/vkmla/vk"

// Facts takes the place of what probes find out by running kernels, on a device that is not there:
// a tool or a test sets it as an adapter's vk.Adapter.Facts.
type Facts struct {
	// Flushes says that subnormals of binary16 count as zeros.
	Flushes bool
	// Rows returns as which of the rows of shaders/lib/cm_rows.glsl lanes hold the operands of a
	// shape, 0 for none. Matrices of E4M3 that lie so are exact.
	Rows func(m, n, k, subgroup int) int
	// Layout returns what MatrixLayout finds. It may be nil: nothing.
	Layout func(m, n, k, subgroup int) []uint32
}

// factsOf returns the facts of a device, nil for one that is asked.
func factsOf(dev *vk.Device) *Facts {
	f, _ := dev.Adapter().Facts.(*Facts)
	return f
}
