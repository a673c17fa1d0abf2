package attention

import (
	"fmt"
	"math"

	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// D is the length of a cached row and of a query head: 448 numbers without and 64
// with rotary position.
const D = 512

// MaxHeads is the largest number of query heads.
const MaxHeads = 128

// DefaultScale is the softmax scale of DeepSeek-V4, 512^-0.5.
const DefaultScale float32 = 0.044194173824159216

// IndexVariants is the ladder of the operations that build index lists: they have
// one build, which needs no feature.
var IndexVariants = []vk.Variant{{Name: "base"}}

// pushLayouts names the push-constant structure of each kernel; a test compares
// them with the SPIR-V.
var pushLayouts = map[string]any{
	"attn_global_topk":     attnGlobalTopkPush{},
	"attn_window_indices":  attnWindowIndicesPush{},
	"attn_c128_indices":    attnC128IndicesPush{},
	"attn_combine_indices": attnCombineIndicesPush{},
	"attn_pack_indices":    attnPackIndicesPush{},
	"attn_decode":          attnDecodePush{},
	"attn_prefill":         attnPrefillPush{},
	"attn_merge":           attnMergePush{},
}

// kernel builds the named shader.
func kernel(dev *vk.Device, name string, bindings []vk.Access, push int, subgroup uint32, constants ...uint32) (*vk.Kernel, error) {
	s, err := shaders.Get(name)
	if err != nil {
		return nil, fmt.Errorf("attention: kernel: %w", err)
	}
	k, err := dev.Kernel(vk.KernelSpec{Name: name, SPIRV: s.SPIRV, Bindings: bindings, PushSize: push,
		Constants: constants, SubgroupSize: subgroup, Requires: s.Requires})
	if err != nil {
		return nil, fmt.Errorf("attention: kernel %s: %w", name, err)
	}
	return k, nil
}

// indexKernel builds the kernel of an index operation after checking the variant
// that was asked for.
func indexKernel(dev *vk.Device, name, variant string, bindings []vk.Access, push int, constants ...uint32) (*vk.Kernel, error) {
	if _, err := vk.ChooseVariant(name, dev.Adapter(), IndexVariants, variant); err != nil {
		return nil, fmt.Errorf("attention: %w", err)
	}
	return kernel(dev, name, bindings, push, 0, constants...)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func roundUp(a, b int) int { return ceilDiv(a, b) * b }

func wrong(op, arg string, got any, want string, args ...any) error {
	return &vk.ArgumentError{Op: "attention: " + op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, args...)}
}

// positive checks that a configuration value is at least 1.
func positive(op, arg string, v int) error {
	if v < 1 || v > math.MaxInt32 {
		return wrong(op, arg, v, "1 to 2^31-1")
	}
	return nil
}

// elements checks that an array's flat index fits what the kernels count with.
func elements(op, arg string, t tensor.Tensor) error {
	if t.Len() > math.MaxInt32 {
		return wrong(op, arg, t, "fewer than 2^31 elements")
	}
	return nil
}

// check is tensor.Check with the package's name before the operation's, followed
// by elements.
func check(op, arg string, t tensor.Tensor, dt tensor.DType, dims ...int) error {
	if err := tensor.Check("attention: "+op, arg, t, dt, dims...); err != nil {
		return err
	}
	return elements(op, arg, t)
}

// first returns the first error of a list of checks.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// dim is a dimension of a tensor that may be absent or have another rank, in
// which case a later check refuses it.
func dim(t tensor.Tensor, i int) int {
	if i < len(t.Shape) {
		return t.Shape[i]
	}
	return 0
}

// present is the view to bind for a tensor that may be absent.
func present(dev *vk.Device, t tensor.Tensor) vk.View {
	if t.IsZero() {
		return dev.Dummy()
	}
	return t.View()
}

// bit is the flag 1<<n if set.
func bit(n uint, set bool) uint32 {
	if set {
		return 1 << n
	}
	return 0
}
