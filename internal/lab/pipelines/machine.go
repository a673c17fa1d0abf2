package pipelines

import (
	"fmt"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/internal/lab/machine"
	"github.com/vkmla/vkmla/vk"
)

// Broken compiles what operations launch by some profiles, and returns how many kernels that were
// and what machine finds wrong with their code, a line each. Nothing is executed.
//
// Errors: those of Choose and vk.Device.Listings; a kernel that the driver does not list as RADV
// and ANV do.
func Broken(a *vk.Adapter, profiles ...string) (kernels int, faults []string, err error) {
	knowMatrices(a)
	seen := map[string]bool{}
	for _, profile := range profiles {
		open := func() (*vk.Device, error) { return a.Open(vk.DeviceOptions{Listings: true, Profile: profile}) }
		_, err := Choose(open, func(dev *vk.Device, k *vk.Kernel, to *Chosen) error {
			key := fmt.Sprintf("%s%d by subgroups of %d", to.Kernel, to.Constants, to.Subgroup)
			if seen[key] {
				return nil
			}
			seen[key] = true
			found, err := check(dev, k)
			for _, f := range found {
				faults = append(faults, key+": "+f)
			}
			return err
		})
		if err != nil {
			return 0, nil, err
		}
	}
	return len(seen), faults, nil
}

func check(dev *vk.Device, k *vk.Kernel) (faults []string, err error) {
	list, err := door.Listings(dev, k)
	listed := false
	for _, x := range list {
		switch x.Name {
		case "Assembly":
			faults, listed = append(faults, machine.AMD(x.Text)...), true
		case "GEN Assembly":
			faults, listed = append(faults, machine.Intel(x.Text)...), true
		}
	}
	if err == nil && !listed {
		err = fmt.Errorf("pipelines: the driver has no listing of %s", k.Name())
	}
	return faults, err
}
