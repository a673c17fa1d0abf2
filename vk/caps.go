package vk

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"unsafe"
)

// DeviceType is the kind of device, as its driver reports it.
type DeviceType int

// Device types, with Vulkan's values.
const (
	TypeOther DeviceType = iota
	TypeIntegrated
	TypeDiscrete
	TypeVirtual
	TypeCPU
)

// String names the type: "discrete", "integrated", "virtual", "cpu" or "other".
func (t DeviceType) String() string {
	switch t {
	case TypeIntegrated:
		return "integrated"
	case TypeDiscrete:
		return "discrete"
	case TypeVirtual:
		return "virtual"
	case TypeCPU:
		return "cpu"
	}
	return "other"
}

// rank orders devices: GPUs first, the fast kind before the slow, CPUs last.
func (t DeviceType) rank() int {
	return slices.Index([]DeviceType{TypeDiscrete, TypeIntegrated, TypeVirtual, TypeOther, TypeCPU}, t)
}

// DriverID says which driver a device has, with the values of VkDriverId; 0 is none that the driver
// tells.
type DriverID uint32

// Version is a packed Vulkan version number.
type Version uint32

// String reads "major.minor.patch".
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v>>22&0x7f, v>>12&0x3ff, v&0xfff)
}

// CoopMatShape is one shape of cooperative matrix product R = A*B + C that the
// device offers: A is [M,K], B [K,N], C and R [M,N].
type CoopMatShape struct {
	M, N, K         uint32
	A, B, C, Result string // component types: "f16", "bf16", "f32", "s8", "u8", "s32", ...
	Scope           string // what multiplies together: "subgroup" or "workgroup"
	Saturating      bool   // integer sums saturate
}

// Caps records what a device offers.
type Caps struct {
	MaxStorageBufferRange   uint64    // bytes that one descriptor can cover
	MaxAllocation           uint64    // bytes of one allocation that the driver vouches for; more may work
	MaxBuffer               uint64    // bytes that a buffer may have; 0 where the driver does not tell
	MaxStorageBuffers       uint32    // descriptors in one set
	MaxPushConstants        uint32    // bytes
	SharedMemory            uint32    // bytes of a workgroup
	MaxWorkgroupInvocations uint32    // invocations of a workgroup
	MaxWorkgroupSize        [3]uint32 // of these in x, y, z
	MaxWorkgroupSubgroups   uint32    // subgroups of a workgroup, if their size is required; 0 if none can be
	MaxWorkgroupCount       [3]uint32 // workgroups of a dispatch in x, y, z
	SubgroupSize            uint32    // default size
	MinSubgroupSize         uint32    // smallest that can be required
	MaxSubgroupSize         uint32    // largest that can be required
	ComputeUnits            uint32    // multiprocessors (NVIDIA), compute units (AMD), cores (ARM); 0 where the driver does not tell
	ComputeUnitsBy          string    // the extension that tells them; empty where none does
	VendorID, DeviceID      uint32    // of the PCI bus, or what the driver uses instead
	StorageAlignment        uint64    // of a descriptor's offset, bytes
	TimestampPeriod         float64   // ns per tick; 0 when there are no timestamps
	HeapBytes               uint64    // largest device-local heap
	Heaps                   []Heap    // all memories that the driver lists

	// Features tells by Vulkan's names which features the device offers. Further names:
	//
	//	coopmat.f16.f32, coopmat.bf16.f32, coopmat.e4m3.f32
	//	                                   matrix products of subgroup scope with f32 sums
	//	subgroupSizeControl                shaders can require a size, or there is only one
	//	subgroupShuffle                    they can shuffle
	//	subgroupBallot                     they can broadcast and vote by ballot
	//	subgroupArithmetic                 they can reduce and scan
	//	exportMemory, importMemory         of buffers by handle, see Buffer.Export
	//	exportTimeline, importTimeline     of semaphores, see Semaphore.Export
	//	importHostMemory                   Device.ImportHost
	Features map[string]bool
	CoopMat  []CoopMatShape // empty without the feature cooperativeMatrix

	requiredSubgroupCompute  bool // a compute shader can require a size
	knownSubgroupSize        bool // or there is only one
	timestampMask            uint64
	hostAlignment            uint64 // of memory for ImportHost, bytes
	pipelineCacheUUID        [16]byte
	deviceLocal, hostVisible []memoryType
}

// Heap is one of a device's memories.
type Heap struct {
	Bytes       uint64
	DeviceLocal bool // the device's own; otherwise the host's
}

type memoryType struct {
	index uint32
	flags uint32
	of    int    // Caps.Heaps
	heap  uint64 // its bytes
}

// Missing returns those of the required features that the device does not offer,
// in the order given; nil if it offers all. A name that is not in Features counts
// as missing.
func (c *Caps) Missing(required []string) []string {
	var m []string
	for _, f := range required {
		if !c.Features[f] {
			m = append(m, f)
		}
	}
	return m
}

// Adapter is a device as the loader lists it, and what it offers.
type Adapter struct {
	Index         int // in Instance.Adapters
	Name          string
	Type          DeviceType
	UUID          string // 32 hexadecimal digits
	Driver        DriverID
	DriverName    string
	DriverInfo    string
	DriverVersion uint32  // packed as the vendor likes
	APIVersion    Version // of Vulkan, as the driver reports it
	Caps          Caps

	// Facts takes the place of what packages above find out by running kernels, where they know its
	// type; nil: they find it out. It is for a device that is not there.
	Facts any

	instance  *Instance
	phys      unsafe.Pointer
	raw       C.VmAdapter
	processor bool // the device is the host's processor: nothing computes beside it
}

// newAdapter asks what a device offers. If restrict is not nil, it takes some of it away.
func newAdapter(in *Instance, phys unsafe.Pointer, restrict func(*C.VmAdapter)) (*Adapter, error) {
	a := &Adapter{instance: in, phys: phys}
	raw := (*C.VmAdapter)(C.calloc(1, C.size_t(unsafe.Sizeof(C.VmAdapter{}))))
	defer C.free(unsafe.Pointer(raw))
	if err := result("query device", int(C.vm_query(in.c, phys, raw))); err != nil {
		return nil, err
	}
	a.chooseFamily(raw)
	if restrict != nil {
		restrict(raw)
	}
	a.raw = *raw
	p := &raw.props.properties
	a.Name = C.GoString(&p.deviceName[0])
	a.Type = DeviceType(p.deviceType)
	a.processor = a.Type == TypeCPU
	a.UUID = hex.EncodeToString(C.GoBytes(unsafe.Pointer(&raw.props11.deviceUUID), 16))
	a.Driver = DriverID(raw.driver.driverID)
	a.DriverName = C.GoString(&raw.driver.driverName[0])
	a.DriverInfo = C.GoString(&raw.driver.driverInfo[0])
	a.DriverVersion = uint32(p.driverVersion)
	a.APIVersion = Version(p.apiVersion)
	if err := a.fillCaps(raw); err != nil {
		return nil, err
	}
	return a, nil
}

// queueFamily describes what decides between a device's families of queues.
type queueFamily struct{ flags, timestampBits uint32 }

const (
	queueGraphics = 0x1
	queueCompute  = 0x2
	vendorAMD     = 0x1002
)

// pickFamily chooses among a device's families of queues: the first with compute, which every
// driver tests most. AMD's first is the ring that a desktop draws with: a long step holds it up,
// and a hang resets graphics, too. There it is the first with compute alone that has timestamps. It
// is -1 where no family computes.
func pickFamily(families []queueFamily, vendor uint32) int {
	first := slices.IndexFunc(families, func(f queueFamily) bool { return f.flags&queueCompute != 0 })
	if first < 0 || vendor != vendorAMD || families[first].flags&queueGraphics == 0 {
		return first
	}
	alone := slices.IndexFunc(families, func(f queueFamily) bool {
		return f.flags&(queueCompute|queueGraphics) == queueCompute && f.timestampBits > 0
	})
	return max(first, alone)
}

func (a *Adapter) chooseFamily(raw *C.VmAdapter) {
	var families []queueFamily
	for _, f := range raw.family[:raw.families] {
		families = append(families, queueFamily{uint32(f.queueFlags), uint32(f.timestampValidBits)})
	}
	if i := pickFamily(families, uint32(raw.props.properties.vendorID)); i >= 0 {
		raw.queueFamily, raw.queueFamilyFound, raw.timestampBits = C.uint32_t(i), 1, C.uint32_t(families[i].timestampBits)
	}
}

// shaderStageCompute is the compute stage in a set of shader stages.
const shaderStageCompute = 0x20

func (a *Adapter) fillCaps(raw *C.VmAdapter) error {
	p, l, c := &raw.props.properties, &raw.props.properties.limits, &a.Caps
	c.MaxStorageBufferRange = uint64(l.maxStorageBufferRange)
	c.MaxAllocation = uint64(raw.props11.maxMemoryAllocationSize)
	c.MaxBuffer = uint64(raw.maintenance4.maxBufferSize)
	c.MaxStorageBuffers = min(uint32(l.maxPerStageDescriptorStorageBuffers), uint32(l.maxDescriptorSetStorageBuffers))
	c.MaxPushConstants = uint32(l.maxPushConstantsSize)
	c.SharedMemory = uint32(l.maxComputeSharedMemorySize)
	c.MaxWorkgroupInvocations = uint32(l.maxComputeWorkGroupInvocations)
	for i := range c.MaxWorkgroupCount {
		c.MaxWorkgroupCount[i] = uint32(l.maxComputeWorkGroupCount[i])
		c.MaxWorkgroupSize[i] = uint32(l.maxComputeWorkGroupSize[i])
	}
	required := raw.has13 != 0 && raw.f13.subgroupSizeControl != 0 && raw.subgroup.requiredSubgroupSizeStages&shaderStageCompute != 0
	c.fillSubgroups(uint32(raw.props11.subgroupSize), uint32(raw.subgroup.minSubgroupSize), uint32(raw.subgroup.maxSubgroupSize), required)
	if required {
		c.MaxWorkgroupSubgroups = uint32(raw.subgroup.maxComputeWorkgroupSubgroups)
	}
	c.fillUnits(raw)
	c.StorageAlignment = uint64(l.minStorageBufferOffsetAlignment)
	if bits := raw.timestampBits; bits > 0 {
		c.TimestampPeriod = float64(l.timestampPeriod)
		c.timestampMask = ^uint64(0) >> (64 - uint(bits))
	}
	c.VendorID, c.DeviceID = uint32(p.vendorID), uint32(p.deviceID)
	copy(c.pipelineCacheUUID[:], C.GoBytes(unsafe.Pointer(&p.pipelineCacheUUID), 16))
	c.fillMemory(raw)
	if !trustsMatrices(a.Driver, raw.dots.integerDotProduct4x8BitPackedMixedSignednessAccelerated != 0) {
		raw.coopmat.cooperativeMatrix, a.raw.coopmat.cooperativeMatrix = 0, 0
	}
	c.fillFeatures(raw)
	// A device may enumerate shapes with the feature off: believe the feature.
	if c.Features["cooperativeMatrix"] {
		return a.fillCoopMat()
	}
	return nil
}

// trustsMatrices reports whether a device has the matrices that its driver offers. AMD's own
// drivers offer them on GPUs that have none (llama.cpp#11074); those do not multiply packed
// integers of mixed signs either.
func trustsMatrices(driver DriverID, mixedSigns bool) bool { return !amdOwn(driver) || mixedSigns }

func amdOwn(driver DriverID) bool { return driver == 1 || driver == 2 }

// fillUnits notes how many compute units there are, by the first extension that says so. A
// structure that the driver does not know stays 0.
func (c *Caps) fillUnits(raw *C.VmAdapter) {
	arrays := &raw.arrays
	for _, by := range []struct {
		extension string
		units     C.uint32_t
	}{
		{"VK_NV_shader_sm_builtins", raw.sm.shaderSMCount},
		{"VK_AMD_shader_core_properties2", raw.cores.activeComputeUnitCount},
		{"VK_AMD_shader_core_properties", arrays.shaderEngineCount * arrays.shaderArraysPerEngineCount * arrays.computeUnitsPerShaderArray},
		{"VK_ARM_shader_core_builtins", raw.builtins.shaderCoreCount},
	} {
		if by.units > 0 {
			c.ComputeUnits, c.ComputeUnitsBy = uint32(by.units), by.extension
			return
		}
	}
}

// fillSubgroups notes the default, least and largest size of subgroups, 0 where the driver
// does not tell, and whether a compute shader can require one. A device with a single size,
// such as Mesa's NVK has, need not require it.
func (c *Caps) fillSubgroups(size, least, most uint32, required bool) {
	c.SubgroupSize, c.MinSubgroupSize, c.MaxSubgroupSize = size, size, size
	if required {
		c.MinSubgroupSize, c.MaxSubgroupSize = least, most
	}
	c.requiredSubgroupCompute = required
	c.knownSubgroupSize = required || least == size && most == size
}

// fillMemory lists the memories and the kinds of memory that buffers may be in.
func (c *Caps) fillMemory(raw *C.VmAdapter) {
	const heapDeviceLocal = 0x1
	for _, h := range raw.memory.memoryHeaps[:raw.memory.memoryHeapCount] {
		c.Heaps = append(c.Heaps, Heap{uint64(h.size), h.flags&heapDeviceLocal != 0})
	}
	for i := range int(raw.memory.memoryTypeCount) {
		t := raw.memory.memoryTypes[i]
		m := memoryType{uint32(i), uint32(t.propertyFlags), int(t.heapIndex), uint64(raw.memory.memoryHeaps[t.heapIndex].size)}
		if m.flags&memDeviceLocal != 0 {
			c.deviceLocal = append(c.deviceLocal, m)
			c.HeapBytes = max(c.HeapBytes, m.heap)
		}
		if m.flags&memHostVisible != 0 && m.flags&memHostCoherent != 0 {
			c.hostVisible = append(c.hostVisible, m)
		}
	}
}

// subgroups reports whether compute shaders can do an operation inside subgroups.
func subgroups(raw *C.VmAdapter, operation C.uint32_t) bool {
	return raw.props11.subgroupSupportedStages&shaderStageCompute != 0 && raw.props11.subgroupSupportedOperations&operation != 0
}

// featuresOf returns the features that the library enables where a device has them.
func featuresOf(raw *C.VmAdapter) map[string]bool {
	list := map[string]bool{}
	for i := C.uint32_t(0); ; i++ {
		var has C.VmBool
		name := C.vm_feature(raw, i, &has)
		if name == nil {
			return list
		}
		list[C.GoString(name)] = list[C.GoString(name)] || has != 0 // two extensions have one of the same name
	}
}

// fillFeatures notes all features but those of matrix products.
func (c *Caps) fillFeatures(raw *C.VmAdapter) {
	const arithmetic, ballot, shuffle = 0x4, 0x8, 0x10 // kinds of subgroup operations
	c.Features = featuresOf(raw)
	maps.Copy(c.Features, map[string]bool{
		"shaderDenormPreserveFloat16":  raw.floats.shaderDenormPreserveFloat16 != 0,
		"shaderRoundingModeRTEFloat16": raw.floats.shaderRoundingModeRTEFloat16 != 0,
		"subgroupSizeControl":          c.knownSubgroupSize,
		"subgroupShuffle":              subgroups(raw, shuffle),
		"subgroupArithmetic":           subgroups(raw, arithmetic),
		"subgroupBallot":               subgroups(raw, ballot),
		"exportMemory":                 raw.memoryHandles&C.VM_EXTERNAL_EXPORTABLE != 0,
		"importMemory":                 raw.memoryHandles&C.VM_EXTERNAL_IMPORTABLE != 0,
		"exportTimeline":               raw.semaphoreHandles&C.VM_EXTERNAL_SEMAPHORE_EXPORTABLE != 0,
		"importTimeline":               raw.semaphoreHandles&C.VM_EXTERNAL_SEMAPHORE_IMPORTABLE != 0,
		"importHostMemory":             raw.hostMemory&C.VM_EXTERNAL_IMPORTABLE != 0,
	})
	c.hostAlignment = max(1, uint64(raw.host.minImportedHostPointerAlignment))
}

// fillCoopMat notes the shapes of matrices. AMD's own drivers may crash where an integrated GPU is
// asked for them (AMDVLK#422): there it is the shape that all of AMD's matrices have.
func (a *Adapter) fillCoopMat() (err error) {
	list := []CoopMatShape{{M: 16, N: 16, K: 16, A: "f16", B: "f16", C: "f32", Result: "f32", Scope: "subgroup"}}
	if !amdOwn(a.Driver) || a.Type != TypeIntegrated {
		if list, err = a.askCoopMat(); err != nil {
			return err
		}
	}
	a.Caps.CoopMat = list
	for _, m := range list {
		if m.Scope == "subgroup" && m.A == m.B && m.C == "f32" && m.Result == "f32" {
			switch {
			case m.A == "f16":
				a.Caps.Features["coopmat.f16.f32"] = true
			case m.A == "bf16" && a.Caps.Features["shaderBFloat16CooperativeMatrix"]:
				a.Caps.Features["coopmat.bf16.f32"] = true
			case m.A == "e4m3" && a.Caps.Features["shaderFloat8CooperativeMatrix"]:
				a.Caps.Features["coopmat.e4m3.f32"] = true
			}
		}
	}
	return nil
}

// askCoopMat asks the driver for shapes.
func (a *Adapter) askCoopMat() (list []CoopMatShape, err error) {
	var shapes *C.VmCoopMatProperties
	var n C.uint32_t
	if err := result("query cooperative matrices", int(C.vm_coopmat(a.instance.c, a.phys, &shapes, &n))); err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(shapes))
	for _, s := range unsafe.Slice(shapes, int(n)) {
		list = append(list, CoopMatShape{
			M: uint32(s.MSize), N: uint32(s.NSize), K: uint32(s.KSize),
			A: componentName(uint32(s.AType)), B: componentName(uint32(s.BType)),
			C: componentName(uint32(s.CType)), Result: componentName(uint32(s.ResultType)),
			Scope: scopeName(uint32(s.scope)), Saturating: s.saturatingAccumulation != 0,
		})
	}
	return list, nil
}

func componentName(t uint32) string {
	names := []string{"f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"}
	switch {
	case t < uint32(len(names)):
		return names[t]
	case t == 1000141000:
		return "bf16"
	case t == 1000491002:
		return "e4m3"
	case t == 1000491003:
		return "e5m2"
	}
	return fmt.Sprintf("type%d", t)
}

func scopeName(s uint32) string {
	switch s {
	case 2:
		return "workgroup"
	case 3:
		return "subgroup"
	}
	return fmt.Sprintf("scope%d", s)
}

// Usable reports why this library cannot open the adapter, or nil: Vulkan 1.2
// and a compute queue are needed. The error is a *MissingError.
func (a *Adapter) Usable() error {
	e := &MissingError{What: "device", Device: a.Name}
	need := func(name string, ok bool) {
		e.Required = append(e.Required, name)
		if ok {
			e.Available = append(e.Available, name)
		} else {
			e.Missing = append(e.Missing, name)
		}
	}
	need("Vulkan 1.2", a.APIVersion >= 1<<22|2<<12)
	need("compute queue", a.raw.queueFamilyFound != 0)
	if len(e.Missing) > 0 {
		return e
	}
	return nil
}

// requires reports the features that the device lacks, as a *MissingError; what only stands in it.
func (a *Adapter) requires(what string, required ...string) error {
	missing := a.Caps.Missing(required)
	if len(missing) == 0 {
		return nil
	}
	have := slices.DeleteFunc(slices.Clone(required), func(f string) bool { return slices.Contains(missing, f) })
	return &MissingError{What: what, Device: a.Name, Required: required, Available: have, Missing: missing}
}
