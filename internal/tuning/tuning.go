// Package tuning holds every number of the library that was fitted by measurement.
//
// A [Profile] is a plain struct of such numbers. Each family of devices has one, in a file of
// its own: a new family is one file and one row of [profiles]. Limits, layouts and sizes that
// follow from the model or from Vulkan are not fitted and stand where they are used.
package tuning

import (
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/internal/door"
	"github.com/vkmla/vkmla/vk"
)

// Profile holds the numbers that the packages that choose kernels and divide work were fitted to.
type Profile struct {
	Name string // as vk.DeviceOptions.Profile names it

	// Measured profiles were fitted on a device that ran them. Other profiles can time their builds
	// first: see pipeline.Measure.
	Measured bool

	// Timed has what was timed of builds on the device that has the profile, by family.
	Timed map[string]Timed

	Device    Device
	Attention Attention
	Compress  Compress
	Linear    Linear
	Logits    Logits
	TopK      TopK
	Layer     Layer
	Step      Step
}

// row is a line of the table that says which device gets which profile.
type row struct {
	profile *Profile
	when    string // the condition in words, for vkmla info
	fits    func(a *vk.Adapter) bool
}

// profiles is asked from the top. The last row fits every device.
var profiles = []row{
	{&cpu, "the device is a processor", func(a *vk.Adapter) bool { return a.Type == vk.TypeCPU }},
	{&hopper, "listed as Hopper by its PCI id, matrices of bf16", isHopper},
	{&rdna4, "subgroups of 32 to 64, matrices of bf16", isRDNA4},
	{&rdna3, "subgroups of 32 to 64, matrices of f16", isRDNA3},
	{&rdna2, "subgroups of 32 to 64, no matrices", isRDNA},
	{&xe2, "subgroups of 16 to 32", isXe2},
	{&xelp, "listed as Xe-LP by its PCI id, subgroups of 8 to 32", isXeLP},
	{&xe, "subgroups of 8 to 32", isXe},
	{&generic, "no other profile fits", func(*vk.Adapter) bool { return true }},
}

// For returns the profile that a device gets by what it says of itself, and why.
func For(a *vk.Adapter) (p *Profile, why string) {
	for _, r := range profiles {
		if r.fits(a) {
			return r.profile, r.when
		}
	}
	return &generic, "no other profile fits"
}

// profileKey is the key under which a device keeps a profile of its own.
type profileKey struct{}

// Time has operations that are made from now on for a device object prefer builds by their times.
func Time(dev *vk.Device, timed map[string]Timed) {
	p := *Of(dev)
	p.Timed = timed
	door.Notes(dev).Store(profileKey{}, &p)
}

// Of returns the profile of an open device: the one that vk.DeviceOptions.Profile names, or
// else For's, with the times that Time gave it. A name that does not exist counts as none; Named
// tells.
func Of(dev *vk.Device) *Profile {
	if dev != nil {
		if p, ok := door.Notes(dev).Load(profileKey{}); ok {
			return p.(*Profile)
		}
		if p, err := Named(door.Profile(dev)); err == nil {
			return p
		}
	}
	p, _ := For(dev.Adapter())
	return p
}

// Named returns a profile by its name. Errors: vk.ErrArgument, which lists the names.
func Named(name string) (*Profile, error) {
	for _, r := range profiles {
		if r.profile.Name == name {
			return r.profile, nil
		}
	}
	return nil, &vk.ArgumentError{Op: "tuning: profile", Arg: "Profile", Got: name, Want: fmt.Sprintf("one of %v", Names())}
}

// Names lists the profiles.
func Names() []string {
	var names []string
	for _, r := range profiles {
		names = append(names, r.profile.Name)
	}
	slices.Sort(names)
	return names
}
