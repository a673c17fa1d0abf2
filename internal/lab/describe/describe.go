// Package describe says what a Vulkan device is, in the form that vkmla info prints and
// that the report of vkmla check carries.
package describe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/timed"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Device is what is said about a device; sizes are in bytes.
type Device struct {
	Index         int                 `json:"index"`
	Name          string              `json:"name"`
	Type          string              `json:"type"`
	UUID          string              `json:"uuid"`
	PCI           string              `json:"pci_id"` // the vendor's number and the device's
	Driver        string              `json:"driver"`
	DriverInfo    string              `json:"driver_info"`
	DriverVersion uint32              `json:"driver_version"`
	APIVersion    string              `json:"api_version"`
	Usable        bool                `json:"usable"`
	Problem       string              `json:"problem,omitempty"`
	Profile       Profile             `json:"profile"`
	HostAccess    string              `json:"host_access"` // how the host reaches the device's memory
	Watchdog      Watchdog            `json:"watchdog"`
	MayWait       bool                `json:"workgroups_may_wait"` // for others of their launch
	Limits        Limits              `json:"limits"`
	Features      map[string]bool     `json:"features"`
	CoopMat       []string            `json:"cooperative_matrix"`
	Ops           map[string]Variants `json:"ops"`
	Builds        *timed.Builds       `json:"builds,omitempty"` // what was timed on it, if anything
}

// Profile is a tuning profile and why a device has it.
type Profile struct {
	Name     string `json:"name"`
	Why      string `json:"why"`
	Measured bool   `json:"measured"` // on a device that ran it
}

// Watchdog is how long the driver is thought to let a submission run, and whose limit that is.
type Watchdog struct {
	Seconds float64 `json:"seconds"` // 0: any time
	Of      string  `json:"of"`
}

func watchdogOf(a *vk.Adapter) Watchdog {
	limit, of := tuning.Watchdog(a)
	return Watchdog{limit.Seconds(), of}
}

// profileOf returns the profile that a device gets, or the one that was asked for.
func profileOf(a *vk.Adapter, asked string) Profile {
	p, why := tuning.For(a)
	if asked == "" {
		return Profile{p.Name, why, p.Measured}
	}
	return Profile{asked, fmt.Sprintf("asked for; its own would be %s: %s", p.Name, why), tuningOf(a, asked).Measured}
}

// tuningOf returns the profile itself; a name that does not exist counts as none.
func tuningOf(a *vk.Adapter, asked string) *tuning.Profile {
	if p, err := tuning.Named(asked); err == nil {
		return p
	}
	p, _ := tuning.For(a)
	return p
}

// Limits are those of a device that matter here.
type Limits struct {
	HeapBytes               uint64    `json:"device_memory_bytes"`
	Heaps                   []Heap    `json:"memory_heaps"`
	MaxStorageBufferRange   uint64    `json:"max_storage_buffer_range"`
	MaxAllocation           uint64    `json:"max_allocation"`
	MaxBuffer               uint64    `json:"max_buffer"` // 0: the driver does not tell
	MaxStorageBuffers       uint32    `json:"max_storage_buffers"`
	MaxPushConstants        uint32    `json:"max_push_constants"`
	SharedMemory            uint32    `json:"max_shared_memory"`
	MaxWorkgroupInvocations uint32    `json:"max_workgroup_invocations"`
	MaxWorkgroupCount       [3]uint32 `json:"max_workgroup_count"`
	SubgroupSize            uint32    `json:"subgroup_size"`
	MinSubgroupSize         uint32    `json:"min_subgroup_size"`
	MaxSubgroupSize         uint32    `json:"max_subgroup_size"`
	ComputeUnits            int       `json:"compute_units"`
	ComputeUnitsBy          string    `json:"compute_units_by"` // who says so
	TimestampPeriod         float64   `json:"timestamp_period_ns"`
}

// Heap is one of a device's memories. Budget and Usage are what a process may have of it now and
// what it has; absent where the driver does not tell.
type Heap struct {
	Bytes       uint64  `json:"bytes"`
	DeviceLocal bool    `json:"device_local"`
	Budget      *uint64 `json:"budget,omitempty"`
	Usage       *uint64 `json:"usage,omitempty"`
}

// heapsOf lists an adapter's memories.
func heapsOf(a *vk.Adapter) []Heap {
	heaps, budget := []Heap{}, a.MemoryBudget()
	for i, h := range a.Caps.Heaps {
		x := Heap{Bytes: h.Bytes, DeviceLocal: h.DeviceLocal}
		if budget != nil {
			x.Budget, x.Usage = &budget[i].Budget, &budget[i].Usage
		}
		heaps = append(heaps, x)
	}
	return heaps
}

// Variants says which variant of an operation would run, which others can, and what a device lacks
// for the remaining ones, and for some sizes of those that can.
type Variants struct {
	Runs    string              `json:"runs"` // empty: none
	Can     []string            `json:"can"`
	Missing map[string][]string `json:"missing"`
	Partly  map[string][]string `json:"partly,omitempty"`
}

// Of describes an adapter with the tuning profile that it gets, or the one that is named, with the
// builds that were timed on it, if any, and with what it can run of operations' cases.
func Of(a *vk.Adapter, profile string, kept *timed.Builds, cases map[string][]verify.Case) Device {
	c := &a.Caps
	tune := *tuningOf(a, profile)
	if kept != nil && !tune.Measured {
		tune.Timed = kept.Timed
	}
	units, by := tune.Units(a)
	d := Device{
		Index: a.Index, Name: a.Name, Type: a.Type.String(), UUID: a.UUID,
		PCI: fmt.Sprintf("%04x:%04x", c.VendorID, c.DeviceID), Driver: a.DriverName, DriverInfo: a.DriverInfo,
		DriverVersion: a.DriverVersion, APIVersion: a.APIVersion.String(), Usable: true, Features: c.Features,
		Limits: Limits{c.HeapBytes, heapsOf(a), c.MaxStorageBufferRange, c.MaxAllocation, c.MaxBuffer, c.MaxStorageBuffers, c.MaxPushConstants,
			c.SharedMemory, c.MaxWorkgroupInvocations, c.MaxWorkgroupCount, c.SubgroupSize, c.MinSubgroupSize, c.MaxSubgroupSize,
			units, by, c.TimestampPeriod},
		CoopMat: []string{}, Ops: map[string]Variants{}, Profile: profileOf(a, profile),
		Builds: kept, HostAccess: a.HostAccess().String(), Watchdog: watchdogOf(a), MayWait: tuning.MayWait(a),
	}
	if err := a.Usable(); err != nil {
		d.Usable, d.Problem = false, err.Error()
	}
	for _, s := range c.CoopMat {
		d.CoopMat = append(d.CoopMat, fmt.Sprintf("%dx%dx%d %s x %s + %s -> %s, %s", s.M, s.N, s.K, s.A, s.B, s.C, s.Result, s.Scope))
	}
	dev := a.Absent(vk.DeviceOptions{Profile: profile})
	defer dev.Close()
	for _, op := range verify.All() {
		d.Ops[op.Name] = variantsOn(dev, op, tune.Ladder(familyOf(op.Name), op.Variants), cases[op.Name], d.Usable)
	}
	return d
}

// familyOf returns the family of an operation that has builds to choose from, and empty for others.
// The two passes of an xpu operation attend as prompts do.
func familyOf(op string) string {
	for _, x := range [][2]string{{"flashmla_sparse_decode", tuning.Decode}, {"flashmla_", tuning.Prefill}, {"xpu_", tuning.Prefill},
		{"indexer_", tuning.Scores}, {"linear", tuning.Products}} {
		if strings.HasPrefix(op, x[0]) {
			return x[1]
		}
	}
	return ""
}

// variantsOn sorts an operation's builds by what a device can run of some cases: first those that
// it chooses by itself, the best one first, then the others.
func variantsOn(dev *vk.Device, op verify.Op, taken []tuning.Variant, cases []verify.Case, usable bool) Variants {
	o := Variants{Can: []string{}, Missing: map[string][]string{}, Partly: map[string][]string{}}
	for i, v := range slices.Concat(taken, op.Variants) {
		if _, known := o.Missing[v.Name]; known || slices.Contains(o.Can, v.Name) {
			continue
		}
		lacks, all := dev.Caps().Missing(v.Requires), true
		if len(lacks) == 0 && usable {
			lacks, all = op.Refused(dev, v.Name, cases)
		}
		switch {
		case len(lacks) > 0 && all:
			o.Missing[v.Name] = lacks
			continue
		case !usable:
			continue
		case len(lacks) > 0:
			o.Partly[v.Name] = lacks
		}
		o.Can = append(o.Can, v.Name)
		if i < len(taken) && o.Runs == "" {
			o.Runs = v.Name
		}
	}
	return o
}

// HasMatrices reports whether the operation has variants with cooperative matrices, which
// are the ones that are tuned.
func (o Variants) HasMatrices() bool {
	_, missing := o.Missing["cm"]
	return missing || slices.Contains(o.Can, "cm")
}
