package cache

import (
	"fmt"
	"unsafe"

	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Names of the variants of the kernels here.
const (
	VariantBase = "base" // any Vulkan 1.2 device: pools and outputs bound as storage buffers
	VariantDA   = "da"   // pools and outputs of any size, reached by device address
)

// pushLayouts has the push constants of each kernel, for the test that compares
// them with the SPIR-V.
var pushLayouts = map[string]any{
	"kv_insert":            kvInsertPush{},
	"kv_gather":            kvGatherPush{},
	"kv_gather_slots":      kvGatherSlotsPush{},
	"kv_slot_mapping":      kvSlotMappingPush{},
	"kv_gather_index_keys": kvGatherIndexKeysPush{},
	"kv_save_state":        kvSaveStatePush{},
	"kv_compress":          kvCompressPush{},
}

// ladder lists the variants of a kernel, best first. A descriptor is no slower
// than an address and is checked by more layers, so it comes first where it can
// hold the memory.
func ladder(stem string) []vk.Variant {
	return []vk.Variant{
		{Name: VariantBase, Requires: shaders.Requires(stem)},
		{Name: VariantDA, Requires: shaders.Requires(stem + "_da")},
	}
}

// choose picks the variant for pools and outputs of at most maxBytes; 0 stands
// for whatever a descriptor can hold.
func choose(dev *vk.Device, op string, variants []vk.Variant, want string, maxBytes uint64) (string, error) {
	if limit := dev.Caps().MaxStorageBufferRange; maxBytes > limit {
		if want == VariantBase {
			return "", bad(op, "Variant", fmt.Sprintf("base for %d bytes", maxBytes),
				fmt.Sprintf("da, because a descriptor of %s holds %d bytes", dev.Adapter().Name, limit))
		}
		if want == "" {
			want = VariantDA
		}
	}
	v, err := vk.ChooseVariant(op, dev.Adapter(), variants, want)
	return v.Name, err
}

// kernel builds the kernel of a stem and variant. bindings are those of the base
// build; a da build has only the first of them, bound by both.
func kernel[Push any](dev *vk.Device, stem, variant string, bindings []vk.Access, bound int, constants ...int) (*vk.Kernel, error) {
	name := stem
	if variant == VariantDA {
		name, bindings = stem+"_da", bindings[:bound]
	}
	code, err := shaders.Get(name)
	if err != nil {
		return nil, err
	}
	spec := vk.KernelSpec{Name: name, SPIRV: code.SPIRV, Bindings: bindings, Requires: code.Requires}
	var push Push
	spec.PushSize = int(unsafe.Sizeof(push))
	for _, c := range constants {
		spec.Constants = append(spec.Constants, uint32(c))
	}
	return dev.Kernel(spec)
}

// target is memory that a base build binds and a da build reaches by address.
type target struct {
	name   string
	t      tensor.Tensor
	access vk.Access
}

// dispatch records a launch of a kernel whose last bindings are targets; push has
// their addresses for a da build.
func dispatch(rec *vk.Recorder, op string, k *vk.Kernel, variant string, groups [3]uint32, bind []vk.View, targets []target, push []byte) error {
	d := vk.Dispatch{Kernel: k, Groups: groups, Bind: bind, Push: push}
	for _, x := range targets {
		if variant == VariantDA {
			d.Reach = append(d.Reach, vk.Reach{View: x.t.View(), Access: x.access})
		} else {
			d.Bind = append(d.Bind, x.t.View())
		}
	}
	if err := rec.Dispatch(d); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// checkReach proves that a variant can reach the targets: by a descriptor, or at
// an address that suits the kernel's widest access.
func checkReach(dev *vk.Device, op, variant string, align uint64, targets ...target) error {
	for _, x := range targets {
		limit := dev.Caps().MaxStorageBufferRange
		if variant == VariantBase && x.t.Bytes() > limit {
			return bad(op, x.name, fmt.Sprintf("%d bytes", x.t.Bytes()),
				fmt.Sprintf("at most %d bytes for variant base; give MaxBytes when the operation is made", limit))
		}
		if variant == VariantDA && x.t.View().Address()%align != 0 {
			return bad(op, x.name, fmt.Sprintf("offset %d", x.t.Offset), fmt.Sprintf("a multiple of %d bytes", align))
		}
	}
	return nil
}

// strided is the number of workgroups in x for n rows of which a workgroup takes
// each at a time: as many as there is work for, within the device's limit. The
// kernel steps over the rest.
func strided(dev *vk.Device, n, each int) uint32 {
	return uint32(min((n+each-1)/each, int(dev.Caps().MaxWorkgroupCount[0])))
}

// checkCache proves that a cache is what an operation was built for and that its
// variant can reach it.
func checkCache(dev *vk.Device, op, variant string, c KVCache, page int) error {
	if err := c.check(op); err != nil {
		return err
	}
	if c.Layout.Page != page {
		return bad(op, "Cache.Layout.Page", fmt.Sprint(c.Layout.Page), fmt.Sprintf("%d, which the kernel was built for", page))
	}
	return checkReach(dev, op, variant, 8, target{name: "Cache.Pool", t: c.Pool})
}
