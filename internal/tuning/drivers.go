package tuning

import (
	"runtime"
	"slices"
	"time"

	"github.com/vkmla/vkmla/vk"
)

// Drivers, as vk.Adapter.Driver names them.
const (
	DriverAMD          vk.DriverID = 1 // AMD's own
	DriverAMDVLK       vk.DriverID = 2 // AMD's open one
	DriverRADV         vk.DriverID = 3 // Mesa's, for AMD
	DriverNVIDIA       vk.DriverID = 4 // NVIDIA's own
	DriverIntelWindows vk.DriverID = 5
	DriverANV          vk.DriverID = 6 // Mesa's, for Intel
)

// waiting are the drivers for GPUs that let a workgroup go on once it has begun, whatever others
// do. Vulkan does not promise it (KhronosGroup/Vulkan-Docs#2233). Sorensen et al., Specifying and
// Testing GPU Workgroup Progress Models, OOPSLA 2021, found that GPUs of Apple and ARM do not, so
// none of their drivers is here, and no untried one. Mesa's drivers for processors do, as
// workgroups are on threads of the system, but older ones end a loop after 65535 rounds, and they
// gain nothing.
var waiting = []vk.DriverID{
	DriverNVIDIA,
	DriverRADV, DriverAMD, DriverAMDVLK,
	DriverANV, DriverIntelWindows,
}

// MayWait reports whether workgroups of a launch may wait for others that have begun.
func MayWait(a *vk.Adapter) bool { return slices.Contains(waiting, a.Driver) }

// watchdogs says how long drivers let a submission run before they reset the device, as far as that
// is known. NVIDIA's on Linux is known to stop what a desktop waits for, after a time that it does
// not tell.
var watchdogs = []struct {
	drivers []vk.DriverID
	limit   time.Duration
	of      string
}{
	{[]vk.DriverID{DriverRADV, DriverAMD, DriverAMDVLK}, 2 * time.Second, "amdgpu's, since Linux 7"},
	{[]vk.DriverID{DriverANV}, 10 * time.Second, "xe's"},
}

// Watchdog returns the time that a submission may run before a device's driver stops it, and whose
// limit that is; 0 for a processor, which has none.
func Watchdog(a *vk.Adapter) (limit time.Duration, of string) { return watchdogOn(runtime.GOOS, a) }

func watchdogOn(system string, a *vk.Adapter) (limit time.Duration, of string) {
	const least = 2 * time.Second
	switch {
	case a.Type == vk.TypeCPU:
		return 0, "a processor has none"
	case system == "windows":
		return least, "Windows', TdrDelay"
	}
	for _, w := range watchdogs {
		if slices.Contains(w.drivers, a.Driver) {
			return w.limit, w.of
		}
	}
	return least, "not known, so the shortest of those that are"
}
