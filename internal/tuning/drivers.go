package tuning

import (
	"slices"

	"github.com/vkmla/vkmla/vk"
)

// waiting are the drivers for GPUs that let a workgroup go on once it has begun, whatever others
// do. Vulkan does not promise it (KhronosGroup/Vulkan-Docs#2233). Sorensen et al., Specifying and
// Testing GPU Workgroup Progress Models, OOPSLA 2021, found that GPUs of Apple and ARM do not, so
// none of their drivers is here, and none that nobody has tried. Mesa's drivers for processors do,
// as workgroups are on threads of the system, but older ones end a loop after 65535 rounds, and
// they gain nothing.
var waiting = []vk.DriverID{
	vk.DriverNVIDIA,
	vk.DriverRADV, vk.DriverAMD, vk.DriverAMDVLK,
	vk.DriverANV, vk.DriverIntelWindows,
}

// MayWait reports whether workgroups of a launch may wait for others that have begun.
func MayWait(a *vk.Adapter) bool { return slices.Contains(waiting, a.Driver) }
