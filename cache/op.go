package cache

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/vk"
)

// pkg begins the errors of this package and makes its kernels.
const pkg = opkit.Package("cache")

// built names the build that an operation was made of.
type built = opkit.Built

// strided returns the number of workgroups in x for n rows where a workgroup takes `each` rows at a
// time: as many as there is work for, within the device's limit. The kernel steps over the rest.
func strided(dev *vk.Device, n, each int) uint32 {
	return uint32(min(opkit.CeilDiv(n, each), int(dev.Caps().MaxWorkgroupCount[0])))
}

// checkCache proves that a cache is what an operation was built for and that its
// variant can reach it.
func checkCache(dev *vk.Device, op, variant string, c KVCache, page int, record Record) error {
	return opkit.FirstError(c.CheckFor(pkg, op, "Cache", page, record),
		pkg.Reach(dev, op, variant, opkit.Target{Name: "Cache.Pool", T: c.Pool, Align: 8}))
}
