package knowncaps

import (
	"maps"
	"slices"

	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// Device is a kind of device with what its driver reports.
type Device struct {
	Name string
	Type vk.DeviceType
	Caps vk.Caps

	Quads bool // elements of matrices lie in lanes as on NVIDIA's devices

	Driver vk.DriverID // 0: none of those that vk names
}

// Layout returns what opkit.MatrixLayout finds: four neighbouring lanes share a row in pairs of
// elements, where Quads says so; else nothing that a kernel could use.
func (d Device) Layout(m, n, k, subgroup int) []uint32 {
	if !d.Quads {
		return nil
	}
	var words []uint32
	one := func(rows, length int, at func(row, place int) int) {
		for i := range rows * length / subgroup {
			for l := range subgroup {
				each := length / 4
				words = append(words, uint32(at(l/4+i/each*(subgroup/4), l%4*2+i%each%2+i%each/2*8)))
			}
		}
	}
	one(m, k, func(row, place int) int { return row*k + place })
	one(n, k, func(column, place int) int { return place*n + column })
	one(m, n, func(row, place int) int { return row*n + place })
	return words
}

// Rows returns what opkit.Facts.Rows does: 1, which only those ask for that hold operands so, for
// the device's shapes.
func (d Device) Rows(m, n, k, subgroup int) int {
	for _, s := range d.Caps.CoopMat {
		if subgroup == int(d.Caps.MinSubgroupSize) && int(s.M) == m && int(s.N) == n && int(s.K) == k {
			return 1
		}
	}
	return 0
}

// Features that most devices have, by groups that devices lack together.
var (
	storage  = []string{"storageBuffer16BitAccess", "storageBuffer8BitAccess"}
	integers = []string{"shaderInt64", "shaderInt16", "shaderInt8"}
	address  = []string{"bufferDeviceAddress"}
	model    = []string{"vulkanMemoryModel", "vulkanMemoryModelDeviceScope"}
	groups   = []string{"subgroupShuffle", "subgroupArithmetic", "subgroupBallot", "shaderSubgroupExtendedTypes"}
	sizes    = []string{"subgroupSizeControl", "computeFullSubgroups"}
	modern   = slices.Concat(storage, integers, address, model, groups, sizes,
		[]string{"shaderFloat16", "synchronization2", "maintenance4", "timelineSemaphore"})
	matrices = []string{"cooperativeMatrix", "coopmat.f16.f32"}
	halves   = []string{"shaderDenormPreserveFloat16", "shaderRoundingModeRTEFloat16"} // of desktops' drivers
	dots     = []string{"shaderMixedFloatDotProductFloat16AccFloat32"}
	codes    = []string{"shaderFloat8", "shaderFloat8CooperativeMatrix", "coopmat.e4m3.f32"}
	brains   = []string{"shaderBFloat16Type", "shaderBFloat16CooperativeMatrix", "coopmat.bf16.f32"}
)

func features(lists ...[]string) map[string]bool {
	f := map[string]bool{}
	for _, name := range slices.Concat(lists...) {
		f[name] = true
	}
	return f
}

// desktop are limits that GPUs of desktops and servers have in common.
func desktop(features map[string]bool, c vk.Caps) vk.Caps {
	c.MaxStorageBufferRange, c.MaxAllocation, c.MaxBuffer = 1<<32-1, 1<<32-1<<20, 1<<32-4
	c.MaxStorageBuffers, c.MaxPushConstants = 1<<20, 256
	c.MaxWorkgroupInvocations, c.MaxWorkgroupSize = 1024, [3]uint32{1024, 1024, 64}
	c.MaxWorkgroupCount = [3]uint32{1<<31 - 1, 65535, 65535}
	c.TimestampPeriod, c.HeapBytes, c.Features = 1, 16<<30, maps.Clone(features)
	if c.StorageAlignment == 0 {
		c.StorageAlignment = 16
	}
	return c
}

// Devices are devices of many kinds, with the limits and features that matter here, rounded where
// they differ by model. The last is what Vulkan 1.2 promises of any.
func Devices() []Device {
	return append(append(discrete(), older()...), others()...)
}

// The drivers of desktops' GPUs, by what they add to desktop. Where reports disagree, the least of
// them stands here. Issues are those of github.com.

// nvidia is NVIDIA's own driver, with the same limits on Linux and Windows: shared memory of every
// generation from llama.cpp#11595 (RTX 3090), #12833 (3070), #14903 (4070), #15813 (2060) and
// #19376 (5090, Windows); 256 bytes of push constants and the descriptors from Vulkan-Tools#446
// (RTX 2080, Linux) and #106 (GTX 1050 Ti); allocations from VulkanTools#1223.
func nvidia(units, subgroups uint32, f map[string]bool, shapes ...vk.CoopMatShape) vk.Caps {
	c := desktop(f, vk.Caps{SharedMemory: 49152, SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32,
		MaxWorkgroupSubgroups: subgroups, ComputeUnits: units, ComputeUnitsBy: "VK_NV_shader_sm_builtins", CoopMat: shapes})
	c.MaxAllocation = 1<<32 - 1<<21
	return c
}

// h100 returns the only one with a profile of its own, by its id.
func h100(f map[string]bool) vk.Caps {
	c := nvidia(132, 32, f, ampere...)
	c.VendorID, c.DeviceID = 0x10de, 0x2330
	return c
}

// pascal has larger workgroups than its successors: dxvk#267.
func pascal(units uint32) vk.Caps {
	c := nvidia(units, 48, features(modern, halves))
	c.MaxWorkgroupInvocations, c.MaxWorkgroupSize = 1536, [3]uint32{1536, 1024, 64}
	return c
}

// nvk is Mesa's driver for NVIDIA's GPUs, which lets no one require its only size of subgroups;
// push constants from dxvk#4169.
func nvk(units uint32, f map[string]bool, shapes ...vk.CoopMatShape) vk.Caps {
	c := nvidia(units, 0, f, shapes...)
	c.MaxPushConstants = 128
	return c
}

func amd(units, least, subgroups uint32, f map[string]bool, shapes ...vk.CoopMatShape) vk.Caps {
	return desktop(f, vk.Caps{SharedMemory: 65536, SubgroupSize: 64, MinSubgroupSize: least, MaxSubgroupSize: 64,
		MaxWorkgroupSubgroups: subgroups, ComputeUnits: units, ComputeUnitsBy: "VK_AMD_shader_core_properties2",
		StorageAlignment: 4, CoopMat: shapes})
}

// radv is Mesa's driver for AMD's GPUs: Mesa 26.2.6 over GPUs that are not there, which a test of
// internal/lab/pipelines holds against these numbers; the same from llama.cpp#2059 and #17117 (real
// ones), 64 KiB and no bf16 from #18749 (gfx1151) and #27952 (gfx1100).
func radv(units uint32, f map[string]bool, shapes ...vk.CoopMatShape) vk.Caps {
	c := amd(units, 32, 1<<32-1, f, shapes...)
	c.MaxWorkgroupCount[0], c.MaxAllocation, c.TimestampPeriod = 1<<32-1, 1<<32-4, 10
	c.MaxWorkgroupSize[2] = 1024
	return c
}

// amdOwn is AMD's own driver, as on Windows: allocations and buffers of 2 GiB from AMDVLK#413, 32
// KiB of shared memory from llama.cpp#26163 (Adrenalin 26.5; older ones gave 64) and #13324, 128
// bytes of push constants from llama.cpp#5698 (RX 7800 XT) and kompute#275 (RX 6500 XT). No report
// says that it has bf16, or how many subgroups a workgroup has at least: as 1024 invocations make.
// Its matrices are what vk believes of them: none on GPUs that emulate them (llama.cpp#11074), and
// one shape on integrated ones, where asking may crash (AMDVLK#422).
func amdOwn(units uint32, f map[string]bool, shapes ...vk.CoopMatShape) vk.Caps {
	c := amd(units, 32, 32, f, shapes...)
	c.SharedMemory, c.MaxAllocation, c.MaxBuffer, c.MaxPushConstants, c.TimestampPeriod = 32768, 1<<31, 1<<31, 128, 10
	return c
}

// amdOwn2022 lets no kernel require a size of subgroups (requiredSubgroupSizeStages: None), so that
// it may have 32 or 64: kompute#275.
func amdOwn2022(units uint32) vk.Caps {
	c := amdOwn(units, features(slices.DeleteFunc(slices.Clone(modern), func(f string) bool { return slices.Contains(sizes, f) }), halves))
	c.MinSubgroupSize, c.MaxWorkgroupSubgroups = 64, 0
	return c
}

// intel returns a GPU of Intel's by its id, as no driver of its says how many compute units it has.
// The numbers are Mesa's: 26.2.6 over GPUs that are not there, held by the same test as radv's. It
// gives 48 KiB of shared memory on all of them (llama.cpp#25380: so does 26.1.4 on an Arc Pro B50);
// older ones gave 64 KiB, and 128 on Xe2 (llama.cpp#22461). bf16 of Xe from llama.cpp#24404.
func intel(id, least, shared, align uint32, f map[string]bool, shapes ...vk.CoopMatShape) vk.Caps {
	c := desktop(f, vk.Caps{SharedMemory: shared, SubgroupSize: 32, MinSubgroupSize: least, MaxSubgroupSize: 32,
		MaxWorkgroupSubgroups: 1024 / least, StorageAlignment: uint64(align), CoopMat: shapes})
	c.MaxWorkgroupSize[2], c.MaxBuffer, c.TimestampPeriod = 1024, 1<<32, 52.083332
	c.VendorID, c.DeviceID = 0x8086, id
	return c
}

// intelOwn is Intel's own driver, as on Windows: 32 KiB of shared memory on Arc A from
// llama.cpp#14001, 48 on Xe2 and Arrow Lake from #22413 and #24404, no bf16 from those and #17374,
// which also shows f16 matrices on Arc A; the least size of subgroups from IGCIT#1402.
func intelOwn(id, least, shared uint32, shapes ...vk.CoopMatShape) vk.Caps {
	c := intel(id, least, shared, 4, features(modern, halves, matrices), shapes...)
	c.MaxPushConstants, c.MaxWorkgroupCount[0], c.MaxWorkgroupSize[2], c.MaxBuffer = 128, 65535, 64, 1<<32-4
	c.MaxWorkgroupSubgroups = 64
	return c
}

var (
	square     = shape(16, 16, 16, "f16")
	squareBF16 = shape(16, 16, 16, "bf16")
	squareE4M3 = shape(16, 16, 16, "e4m3")
	turing     = []vk.CoopMatShape{shape(16, 8, 8, "f16"), square, shape(16, 8, 16, "f16")}
	ampere     = append(slices.Clone(turing), squareBF16, shape(16, 8, 16, "bf16"))
)

// discrete are GPUs of desktops and servers that differ in what kernels they get.
func discrete() []Device {
	all, f16 := features(modern, halves, matrices, brains), features(modern, halves, matrices)
	return []Device{
		{"H100", vk.TypeDiscrete, h100(all), true, tuning.DriverNVIDIA},
		{"Ada", vk.TypeDiscrete, nvidia(128, 32, all, ampere...), true, tuning.DriverNVIDIA},
		{"Turing", vk.TypeDiscrete, nvidia(68, 32, f16, turing...), true, tuning.DriverNVIDIA},
		{"Turing with NVK", vk.TypeDiscrete, nvk(68, f16, turing...), true, 0},
		{"Pascal", vk.TypeDiscrete, pascal(20), false, tuning.DriverNVIDIA},
		{"RDNA4", vk.TypeDiscrete, radv(64, features(modern, halves, matrices, brains, dots, codes), square, squareBF16, squareE4M3),
			false, tuning.DriverRADV},
		{"RDNA3", vk.TypeDiscrete, radv(96, features(modern, halves, matrices, dots), square), false, tuning.DriverRADV},
		{"RDNA3, AMD's driver", vk.TypeDiscrete, amdOwn(96, f16, square), false, tuning.DriverAMD},
		{"RDNA2", vk.TypeDiscrete, radv(60, features(modern, halves, dots)), false, tuning.DriverRADV},
		{"Arc A", vk.TypeDiscrete, intel(0x56a0, 8, 49152, 4, all, shape(8, 8, 16, "f16"), shape(8, 8, 16, "bf16")),
			false, tuning.DriverANV},
		{"Arc B", vk.TypeDiscrete, intel(0xe20b, 16, 49152, 4, all, shape(8, 16, 16, "f16"), shape(8, 16, 16, "bf16")),
			false, tuning.DriverANV},
	}
}

// older are GPUs that fewer people would run a model on.
func older() []Device {
	plain := features(modern, halves)
	lp, skylake := intel(0x9a49, 8, 49152, 4, plain), intel(0x1912, 8, 49152, 64, plain)
	lp.MaxWorkgroupSubgroups, skylake.MaxWorkgroupSubgroups = 64, 64
	return []Device{
		{"GFX9", vk.TypeDiscrete, amd(64, 64, 0, plain), false, tuning.DriverRADV},
		{"CDNA with matrices", vk.TypeDiscrete,
			amd(104, 64, 0, features(modern, halves, matrices, brains), square, squareBF16), false, tuning.DriverRADV},
		{"Xe-LP", vk.TypeIntegrated, lp, false, tuning.DriverANV},
		{"Skylake", vk.TypeIntegrated, skylake, false, tuning.DriverANV},
		{"Arc of no known id", vk.TypeDiscrete, intel(0xffff, 16, 49152, 4, plain), false, tuning.DriverANV},
	}
}

// others are devices with less: of phones, small boards and CPUs.
func others() []Device {
	small := func(c vk.Caps, f map[string]bool) vk.Caps {
		c = desktop(f, c)
		c.MaxStorageBufferRange, c.MaxAllocation, c.MaxBuffer = 1<<27, 1<<30, 1<<30
		c.MaxPushConstants, c.MaxWorkgroupCount = 128, [3]uint32{65535, 65535, 65535}
		return c
	}
	adreno := small(vk.Caps{SharedMemory: 32768, SubgroupSize: 128, MinSubgroupSize: 64, MaxSubgroupSize: 128, MaxWorkgroupSubgroups: 16,
		StorageAlignment: 64}, features(modern))
	adreno.MaxWorkgroupInvocations = 2048 // no more than 1024 of them in x
	mali := small(vk.Caps{SharedMemory: 32768, SubgroupSize: 16, MinSubgroupSize: 16, MaxSubgroupSize: 16, StorageAlignment: 16},
		features(modern))
	mali.MaxWorkgroupInvocations, mali.MaxWorkgroupSize, mali.MaxWorkgroupSubgroups = 384, [3]uint32{384, 384, 384}, 24
	v3d := small(vk.Caps{SharedMemory: 16384, SubgroupSize: 16, MinSubgroupSize: 16, MaxSubgroupSize: 16, StorageAlignment: 32},
		features(storage, address, model, sizes, []string{"subgroupShuffle", "subgroupBallot"}))
	v3d.MaxWorkgroupInvocations, v3d.MaxWorkgroupSize = 256, [3]uint32{256, 256, 256}
	v3d.MaxWorkgroupSubgroups, v3d.MaxStorageBuffers = 16, 16
	apple := small(vk.Caps{SharedMemory: 32768, SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32},
		features(storage, integers, address, groups, []string{"shaderFloat16"}))
	apple.MaxStorageBuffers, apple.MaxStorageBufferRange = 31, 1<<31-1
	old := small(vk.Caps{SharedMemory: 32768, SubgroupSize: 8, MinSubgroupSize: 8, MaxSubgroupSize: 8}, features(modern))
	newer := small(vk.Caps{SharedMemory: 32768, SubgroupSize: 8, MinSubgroupSize: 8, MaxSubgroupSize: 8,
		CoopMat: []vk.CoopMatShape{shape(8, 8, 8, "f16")}}, features(modern, matrices))
	buffers := Least()
	buffers.MaxStorageBuffers = 16
	return []Device{
		{"Adreno", vk.TypeIntegrated, adreno, false, 0}, {"Mali", vk.TypeIntegrated, mali, false, 0},
		{"V3D", vk.TypeIntegrated, v3d, false, 0}, {"Apple", vk.TypeIntegrated, apple, false, 0},
		{"lavapipe", vk.TypeCPU, old, false, 0}, {"newer lavapipe", vk.TypeCPU, newer, false, 0},
		{"least with 16 buffers", vk.TypeOther, buffers, false, 0}, {"least", vk.TypeOther, Least(), false, 0},
	}
}

// Least returns what Vulkan 1.2 promises of any device with a compute queue.
func Least() vk.Caps {
	return vk.Caps{
		MaxStorageBufferRange: 1 << 27, MaxAllocation: 1 << 30, MaxStorageBuffers: 4, MaxPushConstants: 128, SharedMemory: 16384,
		MaxWorkgroupInvocations: 128, MaxWorkgroupSize: [3]uint32{128, 128, 64}, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535},
		SubgroupSize: 1, MinSubgroupSize: 1, MaxSubgroupSize: 1, StorageAlignment: 256, HeapBytes: 4 << 30, Features: map[string]bool{},
	}
}
