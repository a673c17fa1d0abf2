package vk

// #cgo linux LDFLAGS: -ldl
// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"fmt"
	"runtime"
	"runtime/cgo"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// Validation selects what the Khronos validation layer checks.
type Validation int

const (
	// ValidationOff loads no layer.
	ValidationOff Validation = iota
	// ValidationCore checks every call against the specification.
	ValidationCore
	// ValidationSync checks, besides, for data races between commands.
	ValidationSync
)

// Message is one report of the validation layer, or of the driver through it.
type Message struct {
	Error bool   // an error; otherwise a warning
	ID    string // the rule, such as "VUID-vkCmdDispatch-None-02697"
	Text  string
}

// InstanceOptions configures NewInstance. The zero value loads the system's
// Vulkan loader with no validation.
type InstanceOptions struct {
	AppName    string        // shown to drivers
	Validation Validation    // needs the layer VK_LAYER_KHRONOS_validation
	OnMessage  func(Message) // called from driver threads, several at once; needs Validation
	Library    string        // loader to open, a name or path; "" is the system's, such as libvulkan.so.1
}

// Instance is an open Vulkan loader with the devices it lists.
type Instance struct {
	c        *C.VmInstance
	handle   cgo.Handle
	adapters []*Adapter
	hung     atomic.Bool // a device of it is left to the driver, see Device.Close
	adopted  bool        // the handle is the program's, see Adopt
}

// The binding keeps its entry points in process-wide variables, so they are
// loaded once, from the first loader that opens.
var loader struct {
	sync.Mutex
	gipa map[string]unsafe.Pointer
	init bool
}

// libraries are the names of the Vulkan loader on a system, best first. MoltenVK is a driver that
// can be opened in its place.
func libraries(system string) []string {
	switch system {
	case "windows":
		return []string{"vulkan-1.dll"}
	case "darwin":
		return []string{"libvulkan.1.dylib", "libvulkan.dylib", "libMoltenVK.dylib"}
	}
	return []string{"libvulkan.so.1", "libvulkan.so"}
}

func load(library string) (unsafe.Pointer, error) {
	names := []string{library}
	if library == "" {
		names = libraries(runtime.GOOS)
	}
	loader.Lock()
	defer loader.Unlock()
	var why []string
	for _, name := range names {
		if p := loader.gipa[name]; p != nil {
			return p, nil
		}
		cname := C.CString(name)
		var msg [256]C.char
		p := C.vm_load(cname, &msg[0], C.size_t(len(msg)))
		C.free(unsafe.Pointer(cname))
		if p == nil {
			why = append(why, C.GoString(&msg[0]))
			continue
		}
		if err := bindTo(p); err != nil {
			return nil, fmt.Errorf("vk: load %s: %w: %v", name, ErrNoLoader, err)
		}
		loader.gipa[name] = p
		return p, nil
	}
	return nil, fmt.Errorf("vk: load: %w: %s", ErrNoLoader, strings.Join(why, "; "))
}

// bindTo gives the binding its first loader's vkGetInstanceProcAddr. The loader's mutex is held.
func bindTo(gipa unsafe.Pointer) error {
	if loader.init {
		return nil
	}
	vulkan.SetGetInstanceProcAddr(gipa)
	if err := vulkan.Init(); err != nil {
		return err
	}
	loader.init, loader.gipa = true, map[string]unsafe.Pointer{}
	return nil
}

const (
	validationLayer = "VK_LAYER_KHRONOS_validation"
	layerSettings   = "VK_EXT_layer_settings"
)

// hasValidation is door.HasValidation.
func hasValidation() bool {
	gipa, err := load("")
	return err == nil && hasLayer(gipa, validationLayer)
}

func hasLayer(gipa unsafe.Pointer, name string) bool {
	var layers *C.VmLayerProperties
	var n C.uint32_t
	if C.vm_instance_layers(gipa, &layers, &n) < 0 {
		return false
	}
	defer C.free(unsafe.Pointer(layers))
	for _, l := range unsafe.Slice(layers, int(n)) {
		if C.GoString(&l.layerName[0]) == name {
			return true
		}
	}
	return false
}

// portability is the extension with which loaders list drivers that lack parts of Vulkan that
// no kernel here needs, as those on top of Metal or Direct3D do.
const portability = "VK_KHR_portability_enumeration"

// hasExtension reports whether the loader and its drivers, or else the layer, have an extension.
func hasExtension(gipa unsafe.Pointer, layer, name string) bool {
	var of *C.char
	if layer != "" {
		of = C.CString(layer)
		defer C.free(unsafe.Pointer(of))
	}
	var exts *C.VmExtensionProperties
	var n C.uint32_t
	if C.vm_instance_extensions(gipa, of, &exts, &n) < 0 {
		return false
	}
	defer C.free(unsafe.Pointer(exts))
	for _, e := range unsafe.Slice(exts, int(n)) {
		if C.GoString(&e.extensionName[0]) == name {
			return true
		}
	}
	return false
}

// NewInstance opens the Vulkan loader and lists the devices. An instance without
// devices is valid; Pick then fails.
//
// Errors: ErrNoLoader; ErrMissingFeature when validation is asked for and the
// layer is not installed; ErrOutOfHostMemory.
func NewInstance(o InstanceOptions) (*Instance, error) {
	gipa, err := load(o.Library)
	if err != nil {
		return nil, err
	}
	in := &Instance{c: (*C.VmInstance)(C.calloc(1, C.size_t(unsafe.Sizeof(C.VmInstance{}))))}

	var layers, exts cstrings
	defer layers.free()
	defer exts.free()
	if o.Validation != ValidationOff {
		if !hasLayer(gipa, validationLayer) {
			in.Close()
			return nil, &MissingError{What: "validation", Device: "the Vulkan loader",
				Required: []string{validationLayer}, Missing: []string{validationLayer}}
		}
		layers.add(validationLayer)
		exts.add("VK_EXT_debug_utils")
		if o.Validation == ValidationSync {
			exts.add("VK_EXT_validation_features")
		}
		on := o.OnMessage
		if on == nil {
			on = func(Message) {}
		}
		in.handle = cgo.NewHandle(on)
	}

	app := C.CString(o.AppName)
	defer C.free(unsafe.Pointer(app))
	sync, settings := C.int(0), C.int(0)
	if o.Validation == ValidationSync {
		sync = 1
		if hasExtension(gipa, validationLayer, layerSettings) {
			exts.add(layerSettings)
			settings = 1
		}
	}
	flags := C.uint32_t(0)
	if hasExtension(gipa, "", portability) {
		exts.add(portability)
		flags = 1 // VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
	}
	r := C.vm_create_instance(gipa, app, flags, layers.ptr(), layers.len(), exts.ptr(), exts.len(), sync, settings,
		C.uintptr_t(in.handle), in.c)
	if err := result("create instance", int(r)); err != nil {
		in.Close()
		return nil, err
	}
	if err := vulkan.InitInstance(vulkan.Instance(in.c.instance)); err != nil {
		in.Close()
		return nil, fmt.Errorf("vk: instance functions: %w: %v", ErrNoLoader, err)
	}
	if err := in.list(); err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

func (in *Instance) list() error {
	var phys *unsafe.Pointer
	var n C.uint32_t
	r := C.vm_physical_devices(in.c, &phys, &n)
	// Loaders report "no driver" in two ways; both mean an empty list here.
	if vulkan.Result(r) == vulkan.ErrorIncompatibleDriver || vulkan.Result(r) == vulkan.ErrorInitializationFailed {
		return nil
	}
	if err := result("list devices", int(r)); err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(phys))
	for _, p := range unsafe.Slice(phys, int(n)) {
		a, err := newAdapter(in, p, nil)
		if err != nil {
			return err
		}
		in.adapters = append(in.adapters, a)
	}
	slices.SortStableFunc(in.adapters, func(a, b *Adapter) int { return a.Type.rank() - b.Type.rank() })
	for i, a := range in.adapters {
		a.Index = i
	}
	return nil
}

// Adapters lists the devices: discrete GPUs, integrated, virtual, then CPUs.
func (in *Instance) Adapters() []*Adapter {
	if in == nil {
		return nil
	}
	return slices.Clone(in.adapters)
}

// Pick chooses an adapter: "" the first that this library can use; a number, the one
// with this index in Adapters, whatever the names are; else the one whose UUID equals
// the selector, or the first whose name contains it, ignoring case.
//
// Errors: ErrNoDevice, with the devices there are; ErrMissingFeature for "" when
// there are devices and none is of use (see Adapter.Usable).
func (in *Instance) Pick(selector string) (*Adapter, error) {
	if in == nil {
		return nil, argument("pick", "instance", "nil", "one that NewInstance returned")
	}
	if selector == "" {
		for _, a := range in.adapters {
			if a.Usable() == nil {
				return a, nil
			}
		}
		if len(in.adapters) > 0 {
			return nil, in.adapters[0].Usable()
		}
		return nil, fmt.Errorf("vk: pick: %w: no driver lists one", ErrNoDevice)
	}
	i, err := strconv.Atoi(selector)
	number := err == nil // and part of no name, in which "1" often is
	for _, a := range in.adapters {
		if number && a.Index == i || strings.EqualFold(a.UUID, selector) {
			return a, nil
		}
	}
	for _, a := range in.adapters {
		if !number && strings.Contains(strings.ToLower(a.Name), strings.ToLower(selector)) {
			return a, nil
		}
	}
	var have []string
	for _, a := range in.adapters {
		have = append(have, fmt.Sprintf("%d %q", a.Index, a.Name))
	}
	return nil, fmt.Errorf("vk: pick: %w matches %q; there are: %s", ErrNoDevice, selector, strings.Join(have, ", "))
}

// Close releases the instance. Devices opened from it must be closed before. Beside a hung device
// the driver keeps it.
func (in *Instance) Close() error {
	if in == nil || in.c == nil {
		return nil
	}
	if in.hung.Load() {
		in.c = nil
		return nil
	}
	if in.c.instance != nil && !in.adopted {
		C.vm_destroy_messenger(in.c)
		vulkan.DestroyInstance(vulkan.Instance(in.c.instance), nil)
	}
	C.free(unsafe.Pointer(in.c))
	in.c = nil
	if in.handle != 0 {
		in.handle.Delete()
	}
	return nil
}

//export vkmlaDebugMessage
func vkmlaDebugMessage(user C.uintptr_t, severity, types C.uint32_t, id, text *C.char) {
	const errorBit, general = 0x1000, 0x1
	if types == general && severity < errorBit {
		return // the loader talking about manifests, not about our calls
	}
	on, ok := cgo.Handle(user).Value().(func(Message))
	if ok {
		on(Message{Error: severity >= errorBit, ID: C.GoString(id), Text: C.GoString(text)})
	}
}

// cstrings is a C array of C strings.
type cstrings struct {
	p []*C.char
	a unsafe.Pointer
}

func (s *cstrings) add(v string) { s.p = append(s.p, C.CString(v)) }

func (s *cstrings) len() C.uint32_t { return C.uint32_t(len(s.p)) }

func (s *cstrings) ptr() **C.char {
	if len(s.p) == 0 {
		return nil
	}
	if s.a == nil {
		s.a = C.calloc(C.size_t(len(s.p)), C.size_t(unsafe.Sizeof(s.p[0])))
		copy(unsafe.Slice((**C.char)(s.a), len(s.p)), s.p)
	}
	return (**C.char)(s.a)
}

func (s *cstrings) free() {
	for _, p := range s.p {
		C.free(unsafe.Pointer(p))
	}
	C.free(s.a)
}
