// Package opkit holds what the wrappers of operations have in common: choosing a
// build of a kernel, checking tensors with errors that name the package, and
// launching a kernel whose large memory is bound in one build and reached by
// address in the others.
package opkit

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// Package is a package's name, which its errors begin with.
type Package string

// Wrong is the error for an argument that is not what it should be.
func (p Package) Wrong(op, arg string, got any, want string, args ...any) error {
	return &vk.ArgumentError{Op: string(p) + ": " + op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, args...)}
}

// Wrap says in which operation an error came; nil stays nil.
func (p Package) Wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", p, op, err)
}

// Check is tensor.Check for a tensor whose elements a kernel counts with 32 bits.
func (p Package) Check(op, arg string, t tensor.Tensor, dt tensor.DType, dims ...int) error {
	if err := p.CheckRows(op, arg, t, dt, dims...); err != nil {
		return err
	}
	if t.Len() > math.MaxInt32 {
		return p.Wrong(op, arg, t, "fewer than 2^31 elements")
	}
	return nil
}

// CheckRows is tensor.Check for a tensor whose rows, but not elements, a kernel
// counts with 32 bits.
func (p Package) CheckRows(op, arg string, t tensor.Tensor, dt tensor.DType, dims ...int) error {
	if err := tensor.Check(string(p)+": "+op, arg, t, dt, dims...); err != nil {
		return err
	}
	if len(t.Shape) > 0 && t.Shape[0] > math.MaxInt32 {
		return p.Wrong(op, arg, t, "fewer than 2^31 rows")
	}
	return nil
}

// Optional is Check for a tensor that may be absent.
func (p Package) Optional(op, arg string, t tensor.Tensor, dt tensor.DType, dims ...int) error {
	if t.IsZero() {
		return nil
	}
	return p.Check(op, arg, t, dt, dims...)
}

// Range checks that a number lies in low..high.
func (p Package) Range(op, arg string, v, low, high int) error {
	if v < low || v > high {
		return p.Wrong(op, arg, v, "%d to %d", low, high)
	}
	return nil
}

// Grid checks that a launch along a dimension has a workgroup for every `each` of n tokens.
func (p Package) Grid(dev *vk.Device, op, arg string, n, each, dimension int) error {
	if limit := int(dev.Caps().MaxWorkgroupCount[dimension]); CeilDiv(n, each) > limit {
		return p.Wrong(op, arg, fmt.Sprintf("%d tokens", n), "at most %d on this device", limit*each)
	}
	return nil
}

// Choose picks the best build of a ladder that the device can run, or the one that
// want names. maxBytes is the size of the largest memory that base binds and the
// other builds reach by address; 0 stands for whatever a descriptor can hold.
func (p Package) Choose(dev *vk.Device, op string, ladder []tuning.Variant, want string, maxBytes uint64) (string, error) {
	return p.ChooseOn(dev, op, ladder, want, maxBytes, func(string) error { return nil })
}

// ChooseOn is Choose, and leaves out a build for which fit returns an error: it found no sizes.
func (p Package) ChooseOn(dev *vk.Device, op string, ladder []tuning.Variant, want string, maxBytes uint64,
	fit func(variant string) error) (string, error) {
	return p.ChooseFit(tuning.Of(dev), dev.Adapter(), op, ladder, want, maxBytes, func(v string) error {
		at := slices.IndexFunc(ladder, func(x tuning.Variant) bool { return x.Name == v })
		if err := p.halves(dev, ladder[at].Requires); err != nil {
			return err
		}
		return fit(v)
	})
}

// ChooseFit is ChooseOn for an adapter that is not open, and a profile. Where the profile avoids
// matrices, builds with them are taken only by name.
func (p Package) ChooseFit(tune *tuning.Profile, a *vk.Adapter, op string, ladder []tuning.Variant, want string, maxBytes uint64,
	fit func(variant string) error) (string, error) {
	if want == "" {
		ladder = tune.Ladder(tuning.Families[op], ladder)
	}
	if limit := a.Caps.MaxStorageBufferRange; maxBytes > limit {
		if want == Base {
			return "", p.Wrong(op, "Variant", fmt.Sprintf("base for %d bytes", maxBytes),
				"another one: a descriptor of %s holds %d bytes", a.Name, limit)
		}
		ladder = without(ladder, Base)
	}
	for {
		v, err := choose(op, a, ladder, want)
		if err != nil {
			return "", fmt.Errorf("%s: %w", p, err)
		}
		if err = fit(v.Name); err == nil {
			return v.Name, nil
		}
		ladder = without(ladder, v.Name)
		if want != "" || len(ladder) == 0 || !forbids(err) {
			return "", fmt.Errorf("%s: %s: variant %s: %w", p, op, v.Name, err)
		}
	}
}

// forbids reports whether an error says that a device cannot run a build at all. Others, such as
// memory that is out while a kernel asks a device, do not choose a slower build.
func forbids(err error) bool {
	return errors.Is(err, vk.ErrMissingFeature) || errors.Is(err, vk.ErrLimit) || errors.Is(err, vk.ErrArgument)
}

// choose returns the first build of a ladder that the device can run; want, when not empty, forces
// one by name. op stands in errors only.
func choose(op string, a *vk.Adapter, ladder []tuning.Variant, want string) (tuning.Variant, error) {
	if a == (*vk.Device)(nil).Adapter() {
		return tuning.Variant{}, &vk.ArgumentError{Op: op, Arg: "device", Got: "nil", Want: "a device"}
	}
	var names []string
	var first error
	for _, v := range ladder {
		names = append(names, v.Name)
		if want != "" && v.Name != want {
			continue
		}
		missing := a.Caps.Missing(v.Requires)
		if len(missing) == 0 {
			return v, nil
		}
		if first == nil {
			have := slices.DeleteFunc(slices.Clone(v.Requires), func(f string) bool { return slices.Contains(missing, f) })
			first = &vk.MissingError{What: op + ": variant " + v.Name, Device: a.Name, Required: v.Requires, Available: have,
				Missing: missing}
		}
	}
	if first == nil {
		return tuning.Variant{}, &vk.ArgumentError{Op: op, Arg: "variant", Got: fmt.Sprintf("%q", want),
			Want: fmt.Sprintf("one of %v", names)}
	}
	return tuning.Variant{}, first
}

func without(ladder []tuning.Variant, name string) []tuning.Variant {
	return slices.DeleteFunc(slices.Clone(ladder), func(v tuning.Variant) bool { return v.Name == name })
}

// Spec says which kernel Kernel asks for.
type Spec struct {
	Stem, Variant string
	SPIRV         []byte      // the module of a kernel that package shaders does not have; else nil
	Bindings      []vk.Access // of the base build
	Bound         int         // how many of them the other builds bind, the first ones
	Push          any         // a value of the type of its push constants; nil: none
	Subgroup      uint32      // the subgroup size to ask for; 0: any
	Constants     []uint32
	Divisible     bool // see vk.KernelSpec
}

// Instead maps names of kernels to those that tests execute in their place, where a device lacks an
// instruction. It is set before anything asks for a kernel.
var Instead map[string]shaders.Kernel

// Asked is told of each kernel that is asked for, with a value of its push constants, where a test
// sets it.
var Asked func(name string, push any)

// Kernel asks the device for a kernel, which owns it. See vk.Device.Kernel for when it is
// compiled.
//
// Errors: *vk.MissingError where the device lacks a feature or a limit of it is too small;
// the others of vk.Device.Kernel.
func (p Package) Kernel(dev *vk.Device, s Spec) (*vk.Kernel, error) {
	name := Stem(s.Stem, s.Variant)
	if Asked != nil {
		Asked(name, s.Push)
	}
	code, replaced := Instead[name]
	switch {
	case replaced:
	case s.SPIRV != nil:
		code.SPIRV = s.SPIRV
	default:
		var err error
		if code, err = shaders.Get(name); err != nil {
			return nil, fmt.Errorf("%s: kernel: %w", p, err)
		}
	}
	bindings := s.Bindings
	if s.Variant != Base {
		bindings = bindings[:s.Bound]
	}
	spec := vk.KernelSpec{Name: name, SPIRV: spirv.WithModes(code.SPIRV, halfModes(dev.Caps())...), Bindings: bindings,
		Constants: s.Constants, SubgroupSize: s.Subgroup, Requires: code.Requires, Divisible: s.Divisible}
	if s.Push != nil {
		spec.PushSize = int(reflect.TypeOf(s.Push).Size())
	}
	k, err := dev.Kernel(spec)
	if err != nil {
		return nil, fmt.Errorf("%s: kernel %s: %w", p, name, err)
	}
	return k, nil
}

// Build chooses a build of the kernel s.Stem, as Choose does, and asks for it.
func (p Package) Build(dev *vk.Device, op, want string, maxBytes uint64, s Spec) (Built, *vk.Kernel, error) {
	variant, err := p.Choose(dev, op, Builds(s.Stem), want, maxBytes)
	if err != nil {
		return "", nil, err
	}
	s.Variant = variant
	k, err := p.Kernel(dev, s)
	return Built(variant), k, err
}

// Target is memory that a base build binds, after its other bindings, and that the
// other builds reach by an address in their push constants.
type Target struct {
	Name   string
	T      tensor.Tensor
	Access vk.Access
	Align  uint64 // of the address, what the widest access needs

	At *uint64 // the push constant that Dispatch gives the address; nil: the caller does
}

// Reach proves that a build can reach its targets: by a descriptor, or at an address that suits the
// widest access. A target may be absent.
func (p Package) Reach(dev *vk.Device, op, variant string, targets ...Target) error {
	for _, x := range targets {
		limit := dev.Caps().MaxStorageBufferRange
		switch {
		case x.T.IsZero():
		case variant == Base && x.T.Bytes() > limit:
			return p.Wrong(op, x.Name, fmt.Sprintf("%d bytes", x.T.Bytes()),
				"at most %d bytes for variant base; give MaxBytes when the operation is made", limit)
		case variant != Base && x.Align > 1 && x.T.View().Address()%x.Align != 0:
			return p.Wrong(op, x.Name, fmt.Sprintf("offset %d", x.T.Offset), "a multiple of %d bytes", x.Align)
		}
	}
	return nil
}

// Bindable checks that a descriptor holds a tensor which every build binds.
func (p Package) Bindable(dev *vk.Device, op, arg string, t tensor.Tensor) error {
	if limit := dev.Caps().MaxStorageBufferRange; t.Bytes() > limit {
		return p.Wrong(op, arg, fmt.Sprintf("%v, %d bytes", t, t.Bytes()),
			"at most %d bytes, which a descriptor of %s holds", limit, dev.Adapter().Name)
	}
	return nil
}

// Dispatch records a launch. d.Bind are the bindings that all builds have; the
// targets follow them in a base build.
func (p Package) Dispatch(rec *vk.Recorder, op, variant string, d vk.Dispatch, targets ...Target) error {
	for _, x := range targets {
		if x.At != nil {
			*x.At = x.T.View().Address() // d.Push views it
		}
		if variant == Base {
			d.Bind = append(d.Bind, x.T.View())
		} else {
			d.Reach = append(d.Reach, vk.Reach{View: x.T.View(), Access: x.Access})
		}
	}
	return p.Wrap(op, rec.Dispatch(d))
}

// Launch records `groups` workgroups of a kernel of build base, which binds all its memory.
func (p Package) Launch(rec *vk.Recorder, op string, k *vk.Kernel, groups int, push []byte, bind ...vk.View) error {
	return p.Wrap(op, rec.Dispatch(vk.Dispatch{Kernel: k, Groups: [3]uint32{uint32(groups), 1, 1}, Push: push, Bind: bind}))
}

// FirstError returns the first error of a list of checks.
func FirstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// DimOrZero is a dimension of a tensor that may be absent or have another rank, in which
// case a check after it refuses the tensor.
func DimOrZero(t tensor.Tensor, i int) int {
	if i < len(t.Shape) {
		return t.Shape[i]
	}
	return 0
}

// ViewOrDummy is the view to bind for a tensor that may be absent. The kernel only reads it.
func ViewOrDummy(dev *vk.Device, t tensor.Tensor) vk.View {
	if t.IsZero() {
		return dev.Dummy()
	}
	return t.View()
}

// Or is a tensor or, where it is absent, another of the launch to bind in its place. What a kernel
// may write cannot be the dummy, since launches beside it read that.
func Or(t, other tensor.Tensor) tensor.Tensor {
	if t.IsZero() {
		return other
	}
	return t
}

// CeilDiv is a/b rounded up.
func CeilDiv(a, b int) int { return (a + b - 1) / b }

// RoundUp is a rounded up to a multiple of b.
func RoundUp(a, b int) int { return CeilDiv(a, b) * b }

// Constants are values as specialisation constants take them.
func Constants(v ...int) []uint32 {
	w := make([]uint32, len(v))
	for i, x := range v {
		w[i] = uint32(x)
	}
	return w
}

// AppendNonzero appends v to constants without its trailing zeros, which are the defaults. A kernel
// with defaults alone keeps its name in caches and records.
func AppendNonzero(constants []uint32, v ...int) []uint32 {
	for len(v) > 0 && v[len(v)-1] == 0 {
		v = v[:len(v)-1]
	}
	return append(constants, Constants(v...)...)
}

// Bit is the flag 1<<n if set.
func Bit(n uint, set bool) uint32 {
	if set {
		return 1 << n
	}
	return 0
}
