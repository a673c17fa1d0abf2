package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// infoLong is what --help says before the flags.
const infoLong = `Info lists every Vulkan device: its driver, the limits and features that matter here, its
tuning profile, and for every operation the variant that would run and what the others
lack.

A tuning profile holds the numbers that kernels are chosen and divided by. A device gets
one by what it says of itself; --profile names another.

Variants:

  base           needs no optional feature; slow where others multiply matrices
  da             the same, with pools reached by device address
  cm, cmb        multiply cooperative matrices of f16, of bf16
  twopass-...    dequantise to a workspace first, then attend; prompts do by themselves where it pays`

func infoCommand() *cobra.Command {
	var output, profile string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "List the devices and what would run on them",
		Long:  infoLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				output = "json"
			}
			return runInfo(cmd.OutOrStdout(), output, profile)
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&output, "output", "o", "table", "table or json")
	fl.StringVar(&profile, "profile", "", "tuning profile instead of the devices' own: "+strings.Join(tuning.Names(), ", "))
	fl.BoolVar(&asJSON, "json", false, "the same as -o json")
	if err := fl.MarkHidden("json"); err != nil {
		panic(err) // a name that is not a flag
	}
	return cmd
}

func runInfo(w io.Writer, output, profile string) error {
	if output != "table" && output != "json" {
		return &vk.ArgumentError{Op: "info", Arg: "output", Got: strconv.Quote(output), Want: "table or json"}
	}
	if err := checkProfile(profile); err != nil {
		return err
	}
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla"})
	if err != nil {
		return err
	}
	defer in.Close()
	devices := []deviceInfo{}
	for _, a := range in.Adapters() {
		devices = append(devices, describe(a, profile))
	}
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		err = enc.Encode(map[string]any{"devices": devices})
	} else {
		for _, d := range devices {
			printDevice(w, d)
		}
	}
	if err == nil && len(devices) == 0 {
		err = fmt.Errorf("info: %w: the loader is there, but no driver lists a device", vk.ErrNoDevice)
	}
	return err
}

// deviceInfo is what info says about a device; sizes are in bytes.
type deviceInfo struct {
	Index         int                   `json:"index"`
	Name          string                `json:"name"`
	Type          string                `json:"type"`
	UUID          string                `json:"uuid"`
	Driver        string                `json:"driver"`
	DriverInfo    string                `json:"driver_info"`
	DriverVersion uint32                `json:"driver_version"`
	APIVersion    string                `json:"api_version"`
	Usable        bool                  `json:"usable"`
	Problem       string                `json:"problem,omitempty"`
	Profile       profileInfo           `json:"profile"`
	Limits        limits                `json:"limits"`
	Features      map[string]bool       `json:"features"`
	CoopMat       []string              `json:"cooperative_matrix"`
	Ops           map[string]opVariants `json:"ops"`
}

// profileInfo is a tuning profile and why a device has it.
type profileInfo struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// profileOf is the profile that a device gets, or the one that was asked for.
func profileOf(a *vk.Adapter, asked string) profileInfo {
	p, why := tuning.For(a)
	if asked == "" {
		return profileInfo{p.Name, why}
	}
	return profileInfo{asked, fmt.Sprintf("asked for; its own would be %s: %s", p.Name, why)}
}

type limits struct {
	HeapBytes               uint64    `json:"device_memory_bytes"`
	MaxStorageBufferRange   uint64    `json:"max_storage_buffer_range"`
	MaxAllocation           uint64    `json:"max_allocation"`
	MaxStorageBuffers       uint32    `json:"max_storage_buffers"`
	MaxPushConstants        uint32    `json:"max_push_constants"`
	SharedMemory            uint32    `json:"max_shared_memory"`
	MaxWorkgroupInvocations uint32    `json:"max_workgroup_invocations"`
	MaxWorkgroupCount       [3]uint32 `json:"max_workgroup_count"`
	SubgroupSize            uint32    `json:"subgroup_size"`
	MinSubgroupSize         uint32    `json:"min_subgroup_size"`
	MaxSubgroupSize         uint32    `json:"max_subgroup_size"`
	ComputeUnits            uint32    `json:"compute_units"` // 0: the driver does not tell
	TimestampPeriod         float64   `json:"timestamp_period_ns"`
}

// opVariants says which variant of an operation would run, which others can,
// and what the remaining ones lack.
type opVariants struct {
	Runs    string              `json:"runs"` // empty: none
	Can     []string            `json:"can"`
	Missing map[string][]string `json:"missing"`
}

func describe(a *vk.Adapter, profile string) deviceInfo {
	c := &a.Caps
	d := deviceInfo{
		Index: a.Index, Name: a.Name, Type: a.Type.String(), UUID: a.UUID, Driver: a.DriverName, DriverInfo: a.DriverInfo,
		DriverVersion: a.DriverVersion, APIVersion: a.APIVersion.String(), Usable: true, Features: c.Features,
		Limits: limits{c.HeapBytes, c.MaxStorageBufferRange, c.MaxAllocation, c.MaxStorageBuffers, c.MaxPushConstants, c.SharedMemory,
			c.MaxWorkgroupInvocations, c.MaxWorkgroupCount, c.SubgroupSize, c.MinSubgroupSize, c.MaxSubgroupSize,
			c.ComputeUnits, c.TimestampPeriod},
		CoopMat: []string{}, Ops: map[string]opVariants{}, Profile: profileOf(a, profile),
	}
	if err := a.Usable(); err != nil {
		d.Usable, d.Problem = false, err.Error()
	}
	for _, s := range c.CoopMat {
		d.CoopMat = append(d.CoopMat, fmt.Sprintf("%dx%dx%d %s x %s + %s -> %s, %s", s.M, s.N, s.K, s.A, s.B, s.C, s.Result, s.Scope))
	}
	for _, op := range verify.All() {
		d.Ops[op.Name] = variantsOn(c, op.Variants, d.Usable)
	}
	return d
}

// variantsOn sorts a ladder, best first, by what a device can run.
func variantsOn(c *vk.Caps, ladder []vk.Variant, usable bool) opVariants {
	o := opVariants{Can: []string{}, Missing: map[string][]string{}}
	for _, v := range ladder {
		lacks := c.Missing(v.Requires)
		switch {
		case len(lacks) > 0:
			o.Missing[v.Name] = lacks
		case usable:
			o.Can = append(o.Can, v.Name)
		}
	}
	if len(o.Can) > 0 {
		o.Runs = o.Can[0]
	}
	return o
}

func printDevice(w io.Writer, d deviceInfo) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-20s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(w, "%d: %s (%s)\n", d.Index, d.Name, d.Type)
	line("uuid", "%s", d.UUID)
	line("driver", "%s %s (version %#x)", d.Driver, d.DriverInfo, d.DriverVersion)
	line("Vulkan", "%s", d.APIVersion)
	if !d.Usable {
		line("cannot be used", "%s", d.Problem)
	}
	line("tuning profile", "%s (%s)", d.Profile.Name, d.Profile.Why)
	l := d.Limits
	line("device memory", "%s", bytesText(l.HeapBytes))
	line("storage buffer", "up to %s, %d in a set; allocation up to %s",
		bytesText(l.MaxStorageBufferRange), l.MaxStorageBuffers, bytesText(l.MaxAllocation))
	line("push constants", "%d bytes", l.MaxPushConstants)
	line("workgroup", "%d invocations, %s of shared memory, up to %v of them",
		l.MaxWorkgroupInvocations, bytesText(uint64(l.SharedMemory)), l.MaxWorkgroupCount)
	line("subgroup", "%d (%d to %d)", l.SubgroupSize, l.MinSubgroupSize, l.MaxSubgroupSize)
	if l.ComputeUnits > 0 {
		line("compute units", "%d", l.ComputeUnits)
	}
	line("timestamps", "%g ns", l.TimestampPeriod)
	var have, lack []string
	for _, f := range slices.Sorted(maps.Keys(d.Features)) {
		if d.Features[f] {
			have = append(have, f)
		} else {
			lack = append(lack, f)
		}
	}
	line("features", "%s", orNone(have))
	line("without", "%s", orNone(lack))
	for i, s := range d.CoopMat {
		name := ""
		if i == 0 {
			name = "cooperative matrix"
		}
		line(name, "%s", s)
	}
	fmt.Fprintln(w, "  operations")
	for _, name := range slices.Sorted(maps.Keys(d.Ops)) {
		printOp(w, name, d.Ops[name])
	}
	fmt.Fprintln(w)
}

// hasMatrices tells whether the operation has variants with cooperative matrices, which
// are the ones that are tuned.
func (o opVariants) hasMatrices() bool {
	_, missing := o.Missing["cm"]
	return missing || slices.Contains(o.Can, "cm")
}

func printOp(w io.Writer, name string, o opVariants) {
	runs := o.Runs
	switch {
	case runs == "":
		runs = "nothing"
	case runs == "base" && o.hasMatrices():
		runs += " (slow)"
	}
	if len(o.Can) > 1 {
		runs += "; also " + strings.Join(o.Can[1:], ", ")
	}
	fmt.Fprintf(w, "    %-38s runs %s\n", name, runs)
	for _, v := range slices.Sorted(maps.Keys(o.Missing)) {
		fmt.Fprintf(w, "    %-38s not %s: device lacks %s\n", "", v, strings.Join(o.Missing[v], ", "))
	}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, " ")
}

func bytesText(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for x >= 1024 && i < len(units)-1 {
		x, i = x/1024, i+1
	}
	return fmt.Sprintf("%.4g %s", x, units[i])
}
