package tuning

import (
	"slices"

	"github.com/vkmla/vkmla/vk"
)

// waiting are the drivers for GPUs that let a workgroup go on once it has begun, whatever others
// do. Vulkan does not promise it (KhronosGroup/Vulkan-Docs#2233), so a driver is in this list for
// what was seen: GPUs of these three vendors pass the tests of Sorensen et al., Specifying and
// Testing GPU Workgroup Progress Models, OOPSLA 2021. Those of Apple and ARM fail them, under
// whatever driver, and nobody has tested the others. Processors do it too, but older Mesa's end a
// loop after 65535 rounds, and they gain nothing.
var waiting = []vk.DriverID{
	vk.DriverNVIDIA,
	vk.DriverRADV, vk.DriverAMD, vk.DriverAMDVLK,
	vk.DriverANV, vk.DriverIntelWindows,
}

// MayWait reports whether workgroups of a launch may wait for others that have begun.
func MayWait(a *vk.Adapter) bool { return slices.Contains(waiting, a.Driver) }
