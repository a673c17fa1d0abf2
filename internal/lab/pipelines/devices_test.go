package pipelines_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/internal/timed"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// adapter returns the device of the tests, without those of testkit.
func adapter(t *testing.T) *vk.Adapter {
	t.Helper()
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests"})
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
	return a
}

// compileOnly returns a device that executes nothing, with VKMLA_TEST_COMPILE_ONLY=1.
func compileOnly(t *testing.T) *vk.Adapter {
	t.Helper()
	if os.Getenv("VKMLA_TEST_COMPILE_ONLY") != "1" {
		t.Skip("wants a driver that only compiles")
	}
	return adapter(t)
}

// TestKnownDevices makes all operations as devices of many kinds would have them, and holds
// every kernel that they ask for against what the device offers. Each operation has a variant
// that the device can run, but where descriptor sets are too small for it. None is compiled. Each
// kernel is asked for by some device, and has the push constants that its operation gives it.
func TestKnownDevices(t *testing.T) {
	asked := map[string]any{}
	opkit.Asked = func(name string, push any) { asked[name] = push }
	defer func() { opkit.Asked = nil }()
	full := os.Getenv("VKMLA_TEST_FULL") == "1"
	devices := append(knowncaps.Devices(), slices.DeleteFunc(knowncaps.Owned(), func(d knowncaps.Device) bool {
		if full { // those that differ from others in numbers only, too
			return slices.ContainsFunc(knowncaps.Devices(), func(x knowncaps.Device) bool { return x.Name == d.Name })
		}
		return d.Type != vk.TypeDiscrete || !strings.HasSuffix(d.Name, "'s driver") || d.Name == "RDNA3, AMD's driver"
	})...)
	for _, d := range devices {
		t.Run(d.Name, func(t *testing.T) {
			dev := testkit.As(t, d)
			buffers := 0
			err := pipelines.Make(dev, func(op, variant string, err error) {
				var missing *vk.MissingError
				if !errors.As(err, &missing) || !strings.HasPrefix(missing.What, "kernel ") {
					return // by its features, or for want of a shape of matrices
				}
				buffers++
				assert.True(t, d.Name == "least" && len(missing.Missing) == 1 &&
					strings.HasSuffix(missing.Missing[0], " storage buffers"), "%s, variant %s: %v", op, variant, err)
			})
			assert.NoError(t, err)
			assert.Equal(t, d.Name == "least", buffers > 0, "%d variants bind too many buffers", buffers)
			_, err1 := cache.NewTableUpdate(dev)
			_, err2 := attention.NewGathered(dev, attention.GatheredConfig{Heads: 64, WindowPage: 64,
				Rows: attention.RowConfig{Window: 128, Windows: 128}})
			assert.True(t, d.Name == "least" || errors.Join(err1, err2) == nil, "%v, %v", err1, err2)
			kernels := dev.Kernels()
			assert.GreaterOrEqual(t, len(kernels), 10, "only %d kernels", len(kernels))
			for _, k := range kernels {
				checkChosen(t, &d.Caps, pipelines.Chosen{Kernel: k.Name(), Constants: k.Constants(), Subgroup: k.SubgroupSize()})
			}
		})
	}
	for _, name := range shaders.Names() {
		if strings.HasPrefix(name, "num_") {
			continue // probes and tests have no operation
		}
		k, err := shaders.Get(name)
		require.NoError(t, err)
		if push, ok := asked[name]; assert.True(t, ok, "no device asks for %s", name) {
			assert.NoError(t, testkit.ComparePush(k.SPIRV, push), name)
		}
	}
}

// parsed are modules by their kernels' names.
var parsed = map[string]*spirv.Module{}

func moduleOf(t *testing.T, name string) *spirv.Module {
	t.Helper()
	if parsed[name] == nil {
		s, err := shaders.Get(name)
		require.NoError(t, err)
		parsed[name], err = spirv.Parse(s.SPIRV)
		require.NoError(t, err)
	}
	return parsed[name]
}

// checkChosen holds a kernel against a device's limits and features.
func checkChosen(t *testing.T, c *vk.Caps, k pipelines.Chosen) {
	t.Helper()
	m, requires := moduleOf(t, k.Kernel), shaders.Requires(k.Kernel)
	size, err1 := m.LocalSize(k.Constants...)
	shared, err2 := m.SharedBytes(k.Constants...)
	require.NoError(t, errors.Join(err1, err2))
	all, subgroup, push := size[0]*size[1]*size[2], k.Subgroup, uint32(0)
	for _, p := range m.Push {
		push = max(push, p.Offset+p.Size)
	}
	wrong := func(what string) { t.Errorf("%s%v: %s", k.Kernel, k.Constants, what) }
	switch {
	case slices.Min(size[:]) < 1 || size[0] > c.MaxWorkgroupSize[0] || size[1] > c.MaxWorkgroupSize[1] || size[2] > c.MaxWorkgroupSize[2] || all > c.MaxWorkgroupInvocations:
		wrong("too many invocations")
	case shared > int(c.SharedMemory):
		wrong("too much shared memory")
	case len(m.Bindings) > int(c.MaxStorageBuffers):
		wrong("too many buffers")
	case push > c.MaxPushConstants:
		wrong("too many push constants")
	case c.Missing(requires) != nil:
		wrong("a feature is missing")
	case subgroup == 0 && (slices.Contains(m.Capabilities, spirv.CooperativeMatrix) || slices.Contains(requires, "subgroupShuffle")):
		wrong("any size of subgroups")
	case subgroup > 0 && (subgroup < c.MinSubgroupSize || subgroup > c.MaxSubgroupSize || size[0]%subgroup != 0):
		wrong("no such subgroups, or some that are not full")
	case subgroup > 0 && c.MaxWorkgroupSubgroups > 0 && all/subgroup > c.MaxWorkgroupSubgroups:
		wrong("too many subgroups")
	}
}

// TestLimits makes all operations by each profile for devices of few invocations and little shared
// memory, on which a profile's first choices do not fit: another always does. None is compiled.
func TestLimits(t *testing.T) {
	for _, limits := range [][2]uint32{{128, 16}, {128, 32}, {256, 16}, {256, 32}, {512, 32}, {512, 48}, {1024, 16}, {1024, 32}} {
		caps := knowncaps.Least()
		caps.MaxStorageBuffers, caps.MaxStorageBufferRange = 16, 1<<30
		caps.MaxWorkgroupInvocations, caps.SharedMemory = limits[0], limits[1]<<10
		caps.MaxWorkgroupSize = [3]uint32{limits[0], limits[0], 64}
		for _, profile := range tuning.Names() {
			t.Run(fmt.Sprintf("%s, %d invocations, %d KiB", profile, limits[0], limits[1]), func(t *testing.T) {
				d := knowncaps.Device{Name: profile, Type: vk.TypeOther, Caps: caps}
				dev, err := testkit.AdapterAs(t, d).Open(vk.DeviceOptions{Profile: profile})
				require.NoError(t, err)
				defer dev.Close()
				require.NoError(t, pipelines.Make(dev, func(op, variant string, err error) {
					assert.ErrorIs(t, err, vk.ErrMissingFeature, "%s, variant %s", op, variant)
					if m := new(vk.MissingError); errors.As(err, &m) {
						assert.NotContains(t, m.What, "kernel ", "%s, variant %s: %v", op, variant, err)
					}
				}))
				for _, k := range dev.Kernels() {
					checkChosen(t, &caps, pipelines.Chosen{Kernel: k.Name(), Constants: k.Constants(), Subgroup: k.SubgroupSize()})
				}
			})
		}
	}
}

// known are the devices of knowncaps that drivers make without their GPU, by the names of gateName.
var known = map[string]string{
	"radv-navi10": "RDNA1", "radv-navi21": "RDNA2", "radv-navi31": "RDNA3", "radv-strix_halo": "RDNA3.5", "radv-gfx1201": "RDNA4",
	"anv-tgl-gt2": "Xe-LP", "anv-dg2": "Arc A", "anv-lnl": "Lunar Lake", "anv-bmg-g21": "Arc B",
	"anv-mtl": "Meteor Lake", "anv-ptl": "Panther Lake",
}

// TestKnownCaps holds what knowncaps says of a device against what its driver reports, with
// VKMLA_TEST_COMPILE_ONLY=1.
func TestKnownCaps(t *testing.T) {
	a := compileOnly(t)
	name := known[gateName(a)]
	all := append(knowncaps.Owned(), knowncaps.Devices()...)
	i := slices.IndexFunc(all, func(d knowncaps.Device) bool { return d.Name == name })
	if i < 0 {
		t.Skipf("%s is no device of knowncaps", a.Name)
	}
	want, got := all[i].Caps, &a.Caps
	assert.Equal(t, all[i].Type, a.Type)
	assert.Equal(t, all[i].Driver, a.Driver)
	p, _ := tuning.For(&vk.Adapter{Type: all[i].Type, Caps: want})
	own, _ := tuning.For(a)
	assert.Equal(t, p.Name, own.Name, "profile")
	for what, x := range map[string][2]any{
		"shared memory":          {want.SharedMemory, got.SharedMemory},
		"least subgroup":         {want.MinSubgroupSize, got.MinSubgroupSize},
		"largest subgroup":       {want.MaxSubgroupSize, got.MaxSubgroupSize},
		"subgroup":               {want.SubgroupSize, got.SubgroupSize},
		"subgroups of workgroup": {want.MaxWorkgroupSubgroups, got.MaxWorkgroupSubgroups},
		"push constants":         {want.MaxPushConstants, got.MaxPushConstants},
		"storage buffer":         {want.MaxStorageBufferRange, got.MaxStorageBufferRange},
		"buffer":                 {want.MaxBuffer, got.MaxBuffer},
		"invocations":            {want.MaxWorkgroupInvocations, got.MaxWorkgroupInvocations},
		"workgroup":              {want.MaxWorkgroupSize, got.MaxWorkgroupSize},
		"workgroups":             {want.MaxWorkgroupCount, got.MaxWorkgroupCount},
		"alignment":              {want.StorageAlignment, got.StorageAlignment},
		"clock":                  {float32(want.TimestampPeriod), float32(got.TimestampPeriod)},
		"units by":               {want.ComputeUnitsBy, got.ComputeUnitsBy},
	} {
		assert.Equal(t, x[0], x[1], what)
	}
	assert.LessOrEqual(t, want.MaxAllocation, got.MaxAllocation) // ANV's is the device's memory
	assert.Equal(t, want.ComputeUnits, got.ComputeUnits, "units")
	if all[i].Driver == tuning.DriverANV {
		assert.Equal(t, [2]uint32{want.VendorID, want.DeviceID}, [2]uint32{got.VendorID, got.DeviceID})
	}
	for f := range want.Features {
		assert.True(t, got.Features[f], "%s is not there", f)
	}
	for f, there := range got.Features {
		others := []string{"deviceFault", "pipelineExecutableInfo", "exportMemory", "importMemory", "importHostMemory", "exportTimeline",
			"importTimeline", "shaderIntegerDotProduct"} // which choose no kernel of the library
		assert.True(t, !there || want.Features[f] || slices.Contains(others, f), "%s is there", f)
	}
	for _, s := range want.CoopMat {
		assert.Contains(t, got.CoopMat, s)
	}
}

// What is said to run is what operations choose: no matrices where the profile avoids them, and no
// build that failed when it was timed.
func TestRuns(t *testing.T) {
	matrices := func(d describe.Device) (list []string) {
		for name, o := range d.Ops {
			if strings.Contains(o.Runs, "cm") {
				list = append(list, name)
			}
			require.Equal(t, o.Runs, o.Can[0], name)
		}
		slices.Sort(list)
		return list
	}
	cases := verify.RandomCases(0)
	for _, d := range knowncaps.Owned() {
		a := testkit.AdapterAs(t, d)
		p, _ := tuning.For(a)
		said := describe.Of(a, "", nil, cases)
		want := d.Caps.Features["cooperativeMatrix"] && !p.Device.AvoidMatrices
		assert.Equal(t, want, len(matrices(said)) > 0, "%s: %v", d.Name, matrices(said))
		assert.Equal(t, d.Caps.Features["cooperativeMatrix"], slices.Contains(said.Ops["linear"].Can, "cm"), d.Name)
		assert.Positive(t, said.Limits.ComputeUnits, d.Name)
		assert.NotContains(t, said.Limits.ComputeUnitsBy, "assumed", d.Name)
	}
	ada := knowncaps.Owned()[1]
	a := testkit.AdapterAs(t, ada)
	all := matrices(describe.Of(a, "generic", nil, cases))
	for _, op := range verify.All() {
		if slices.ContainsFunc(op.Variants, tuning.Matrices) {
			assert.Contains(t, all, op.Name)
		}
	}
	failed := tuning.Timed{Microseconds: map[string]float64{"base": 1}, Failed: map[string]string{"cm": "crashed", "cmb": "crashed"}}
	kept := timed.Builds{Timed: map[string]tuning.Timed{}}
	for _, family := range tuning.Families {
		kept.Timed[family] = failed
	}
	assert.Empty(t, matrices(describe.Of(a, "generic", &kept, cases)), "builds that failed are said to run")
}

// limited returns the device of the tests with lower limits.
func limited(t *testing.T, lower func(*vk.Caps)) knowncaps.Device {
	d := knowncaps.Device{Name: "limited", Type: vk.TypeCPU, Caps: testkit.Device(t).Adapter().Caps}
	lower(&d.Caps)
	return d
}

// What is said to run under lower limits can be made and is right, and what is said not to run
// cannot be made: of every operation and build.
func TestRunsWithinLimits(t *testing.T) {
	cases := verify.RandomCases(0)
	for name, lower := range map[string]func(*vk.Caps){
		"the device's own":           func(c *vk.Caps) {},
		"4 storage buffers":          func(c *vk.Caps) { c.MaxStorageBuffers = 4 },
		"64 invocations":             func(c *vk.Caps) { c.MaxWorkgroupInvocations = 64 },
		"384 invocations":            func(c *vk.Caps) { c.MaxWorkgroupInvocations = 384 },
		"16 KiB, 128 invocations":    func(c *vk.Caps) { c.SharedMemory, c.MaxWorkgroupInvocations = 16<<10, 128 },
		"8 KiB of shared memory":     func(c *vk.Caps) { c.SharedMemory = 8 << 10 },
		"2 KiB of shared memory":     func(c *vk.Caps) { c.SharedMemory = 2 << 10 },
		"16 bytes of push constants": func(c *vk.Caps) { c.MaxPushConstants = 16 },
	} {
		t.Run(name, func(t *testing.T) {
			d := limited(t, lower)
			said := describe.Of(testkit.AdapterAs(t, d), "", nil, cases)
			dev := testkit.As(t, d)
			for _, op := range verify.All() {
				o := said.Ops[op.Name]
				for _, v := range op.Variants {
					if len(d.Caps.Missing(v.Requires)) > 0 {
						continue
					}
					made, refused := 0, 0
					for _, c := range cases[op.Name] {
						if op.Lacks != nil && op.Lacks(c, v.Name) {
							continue
						}
						err := op.Make(dev, v.Name, c)
						// What needs matrices may find none of the device's shapes to fit.
						if errors.Is(err, vk.ErrLimit) || len(v.Requires) > 0 && errors.Is(err, vk.ErrMissingFeature) {
							refused++
						} else if assert.NoError(t, err, "%s %s %s", op.Name, v.Name, c.Name) {
							made++
						}
					}
					assert.Equal(t, made == 0, len(o.Missing[v.Name]) > 0, "%s %s", op.Name, v.Name)
					assert.Equal(t, made > 0 && refused > 0, len(o.Partly[v.Name]) > 0, "%s %s", op.Name, v.Name)
				}
			}
			_, err := verify.Run(t.Context(), dev, verify.Options{Best: true, Most: 1, Seed: 1}, func(r verify.Row) {
				o := said.Ops[r.Op]
				if r.Status == verify.Skip {
					assert.True(t, o.Runs == "" || o.Partly[r.Variant] != nil, "%+v", r)
				} else {
					assert.Equal(t, verify.Pass, r.Status, "%+v", r)
					assert.Contains(t, o.Can, r.Variant, "%+v", r)
				}
			})
			require.NoError(t, err)
		})
	}
}
