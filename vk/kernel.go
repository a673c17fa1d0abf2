package vk

// #include "abi.h"
import "C"

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	vulkan "github.com/goki/vulkan"

	"github.com/vkmla/vkmla/internal/spirv"
)

// Access says how a command uses memory.
type Access uint8

// Kinds of access; ReadWrite is Read|Write.
const (
	Read      Access = 1
	Write     Access = 2
	ReadWrite Access = Read | Write
)

// KernelSpec describes a compute kernel.
type KernelSpec struct {
	Name     string   // for errors and statistics
	SPIRV    []byte   // the module, little-endian; its entry point is main
	Bindings []Access // storage buffers of descriptor set 0, binding i is used as Bindings[i]; all that is not readonly has Write
	PushSize int      // bytes of push constants, a multiple of 4
	// Constants are specialisation constants: id i has the 32-bit value Constants[i].
	Constants []uint32
	// SubgroupSize asks for this subgroup size (needs the feature
	// subgroupSizeControl unless it is the device's only size); 0 takes any.
	SubgroupSize uint32
	Requires     []string // features of the device, keys of Caps.Features
	// Divisible allows Recorder.Split to divide launches of the kernel by workgroups, for
	// launches that may take long. The kernel is built so that a launch may begin at any
	// workgroup, so results are the same bits whether it is divided or not.
	Divisible bool
}

// Kernel is a compute pipeline. The device that built it owns and closes it.
type Kernel struct {
	dev    *Device
	op     string // for errors
	spec   KernelSpec
	counts bool // it reads how many workgroups there are

	mu     sync.Mutex // held while it is compiled
	h      vulkan.Pipeline
	layout *layout // nil until it is compiled
	took   time.Duration
}

// Name returns the name that the kernel was specified with.
func (k *Kernel) Name() string { return k.spec.Name }

func (k *Kernel) destroy() {
	if k.layout != nil {
		vulkan.DestroyPipeline(k.dev.h, k.h, nil)
	}
}

type layoutKey struct{ bindings, push int }

// kernelKey tells kernels apart.
type kernelKey struct {
	name                string
	module              *spirv.Module
	push                int
	bindings, constants string
	subgroup            uint32
	divisible           bool
}

func (s *KernelSpec) key(m *spirv.Module) kernelKey {
	return kernelKey{s.Name, m, s.PushSize, fmt.Sprint(s.Bindings), fmt.Sprint(s.Constants),
		s.SubgroupSize, s.Divisible}
}

// layout is shared by kernels with as many bindings and push-constant bytes.
type layout struct {
	set      vulkan.DescriptorSetLayout
	pipeline vulkan.PipelineLayout
	bindings int
	push     int
}

// Kernel returns the kernel of a specification. Equal specifications give the same kernel.
// Several goroutines may ask at the same time.
//
// Kernel does not wait for the driver's compiler, which takes up to a second for a long
// module. Kernels are compiled in the background, as many at a time as there are processors,
// and Recorder.Dispatch waits for those that it needs. Where the device is the processor
// itself, a kernel is compiled when it is first needed, because nothing is idle meanwhile.
//
// Errors: ErrArgument when the module is not SPIR-V of a compute shader, or uses bindings or push
// constants that the specification does not have, or may write what Bindings only read;
// *MissingError for features, and with ErrLimit for limits that it exceeds; ErrClosed,
// ErrDeviceLost.
func (d *Device) Kernel(s KernelSpec) (*Kernel, error) {
	op := "kernel " + s.Name
	if err := d.usable(op); err != nil && (d == nil || !d.absent) {
		return nil, err
	}
	m, err := d.checkKernel(op, &s)
	if err != nil {
		return nil, err
	}
	key := s.key(m)
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.kernels[key]; k != nil {
		return k, nil
	}
	s.Constants = slices.Clone(s.Constants)
	k := &Kernel{dev: d, op: op, spec: s, counts: m.CountsWorkgroups()}
	d.kernels[key] = k
	if !d.adapter.processor && !d.absent {
		d.compileLater(k)
	}
	return k, nil
}

// compileLater queues a kernel for the goroutines that compile, and starts one if there is
// room. They end when the queue is empty. Under d.mu.
func (d *Device) compileLater(k *Kernel) {
	d.waiting = append(d.waiting, k)
	if d.compilers == runtime.GOMAXPROCS(0) {
		return
	}
	d.compilers++
	d.compiling.Go(func() {
		for {
			d.mu.Lock()
			if len(d.waiting) == 0 || d.closed.Load() {
				d.compilers--
				last := d.compilers == 0 && !d.closed.Load()
				d.mu.Unlock()
				if last {
					d.cache.saveFresh(d)
				}
				return
			}
			k := d.waiting[0]
			d.waiting = d.waiting[1:]
			d.mu.Unlock()
			_ = k.Ready() // a dispatch tries again and returns the error
		}
	})
}

// Ready returns once the kernel is compiled, and compiles it if nothing else does. After an error
// the next call tries again.
//
// Errors: ErrOutOfHostMemory, ErrOutOfDeviceMemory; ErrDriver when the driver refuses the
// module; ErrClosed, ErrDeviceLost.
func (k *Kernel) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.layout != nil {
		return nil
	}
	if err := k.dev.usable(k.op); err != nil {
		return err
	}
	began := time.Now()
	err := k.compile()
	if k.took = time.Since(began); k.took > worthKeeping {
		k.dev.cache.fresh.Store(true)
	}
	return err
}

// checkKernel reads the module of a specification, and holds both against each other and the
// device.
func (d *Device) checkKernel(op string, s *KernelSpec) (*spirv.Module, error) {
	c := d.Caps()
	m, err := parseModule(s.SPIRV)
	switch {
	case err != nil:
		return nil, argument(op, "SPIRV", err.Error(), "a module with a compute shader")
	case len(s.Bindings) > 64:
		return nil, argument(op, "Bindings", fmt.Sprint(len(s.Bindings)), "at most 64 storage buffers")
	case s.PushSize < 0 || s.PushSize%4 != 0:
		return nil, argument(op, "PushSize", fmt.Sprint(s.PushSize), "a multiple of 4")
	case len(s.Constants) > 64:
		return nil, argument(op, "Constants", fmt.Sprint(len(s.Constants)), "at most 64")
	}
	if err := cmp.Or(d.checkLimits(op, s, m), checkModule(op, s, m)); err != nil {
		return nil, err
	}
	required := s.Requires
	if s.SubgroupSize != 0 && (s.SubgroupSize != c.SubgroupSize || c.MinSubgroupSize != c.MaxSubgroupSize) {
		required = append([]string{"subgroupSizeControl"}, required...)
		if s.SubgroupSize < c.MinSubgroupSize || s.SubgroupSize > c.MaxSubgroupSize {
			return nil, argument(op, "SubgroupSize", fmt.Sprint(s.SubgroupSize), "%d to %d", c.MinSubgroupSize, c.MaxSubgroupSize)
		}
	}
	return m, d.adapter.requires(op+": variant "+s.Name, required...)
}

// compile sets the pipeline and its layout. Under k.mu.
func (k *Kernel) compile() error {
	d, op, s := k.dev, k.op, &k.spec
	l, err := d.layout(op, layoutKey{len(s.Bindings), s.PushSize})
	if err != nil {
		return err
	}
	var module vulkan.ShaderModule
	kept := s.SPIRV
	if !d.opts.WholeModules {
		kept = spirv.Prune(kept, s.Constants)
	}
	ci := vulkan.ShaderModuleCreateInfo{
		SType: vulkan.StructureTypeShaderModuleCreateInfo,
		PCode: unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(kept))), len(kept)/4),
	}
	setSize(&ci.CodeSize, len(kept))
	var pins runtime.Pinner // the binding copies addresses of slices into C's memory
	defer pins.Unpin()
	pins.Pin(unsafe.SliceData(kept))
	code := vulkan.CreateShaderModule(d.h, &ci, nil, &module)
	ci.Free()
	if err := d.check(op, int(code)); err != nil {
		return err
	}
	defer vulkan.DestroyShaderModule(d.h, module, nil)

	var constants *C.uint32_t
	if n := len(s.Constants); n > 0 {
		constants = (*C.uint32_t)(unsafe.Pointer(&s.Constants[0]))
	}
	subgroup, full := C.uint32_t(0), C.int(0)
	if s.SubgroupSize != 0 && d.Caps().requiredSubgroupCompute {
		subgroup = C.uint32_t(s.SubgroupSize)
	}
	if s.SubgroupSize != 0 && d.Caps().Features["computeFullSubgroups"] {
		full = 1
	}
	flags := d.pipelineFlags()
	if s.Divisible {
		flags |= C.VM_PIPELINE_CREATE_DISPATCH_BASE
	}
	var h C.VmHandle
	r := C.vm_create_pipeline(d.c, handleValue(unsafe.Pointer(d.cache.h)), handleValue(unsafe.Pointer(l.pipeline)),
		handleValue(unsafe.Pointer(module)), constants, C.uint32_t(len(s.Constants)), subgroup, full, flags, &h)
	if err := d.check(op, int(r)); err != nil {
		return err
	}
	*(*C.VmHandle)(unsafe.Pointer(&k.h)) = h
	k.layout, k.spec.SPIRV = l, nil // the driver has its copy
	return nil
}

func (d *Device) layout(op string, key layoutKey) (*layout, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.layouts[key]; l != nil {
		return l, nil
	}
	l := &layout{bindings: key.bindings, push: key.push}
	bindings := make([]vulkan.DescriptorSetLayoutBinding, key.bindings)
	for i := range bindings {
		bindings[i] = vulkan.DescriptorSetLayoutBinding{
			Binding: uint32(i), DescriptorType: vulkan.DescriptorTypeStorageBuffer, DescriptorCount: 1,
			StageFlags: vulkan.ShaderStageFlags(vulkan.ShaderStageComputeBit),
		}
	}
	si := vulkan.DescriptorSetLayoutCreateInfo{
		SType: vulkan.StructureTypeDescriptorSetLayoutCreateInfo, BindingCount: uint32(len(bindings)), PBindings: bindings,
	}
	var set vulkan.DescriptorSetLayout
	code := vulkan.CreateDescriptorSetLayout(d.h, &si, nil, &set)
	si.Free()
	l.set = set
	if err := d.check(op, int(code)); err != nil {
		return nil, err
	}
	pi := vulkan.PipelineLayoutCreateInfo{
		SType: vulkan.StructureTypePipelineLayoutCreateInfo, SetLayoutCount: 1, PSetLayouts: []vulkan.DescriptorSetLayout{l.set},
	}
	if key.push > 0 {
		pi.PushConstantRangeCount = 1
		pi.PPushConstantRanges = []vulkan.PushConstantRange{{
			StageFlags: vulkan.ShaderStageFlags(vulkan.ShaderStageComputeBit), Size: uint32(key.push),
		}}
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(unsafe.SliceData(pi.PSetLayouts))
	var pipeline vulkan.PipelineLayout
	code = vulkan.CreatePipelineLayout(d.h, &pi, nil, &pipeline)
	pi.Free()
	l.pipeline = pipeline
	if err := d.check(op, int(code)); err != nil {
		vulkan.DestroyDescriptorSetLayout(d.h, l.set, nil)
		return nil, err
	}
	d.layouts[key] = l
	return l, nil
}

func (l *layout) destroy(d *Device) {
	vulkan.DestroyPipelineLayout(d.h, l.pipeline, nil)
	vulkan.DestroyDescriptorSetLayout(d.h, l.set, nil)
}

// Bytes views a push-constant structure of fixed-size fields as bytes. Go's padding
// between or after fields is included. A structure that begins with its 8-byte fields
// and ends on a multiple of 8 has none.
func Bytes[T any](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}
