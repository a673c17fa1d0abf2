// Package shaders holds the compiled compute kernels of vkmla: SPIR-V made from
// the GLSL beside it, embedded so that a program needs no shader compiler.
//
// A kernel's name is the stem of its source, with suffixes where it needs optional features of a
// device, or does something else than the one without. builds.txt lists modules; most are several
// kernels, which choices.go names and tells apart. A test holds the list of suffixes closed:
//
//	(none)  any device with Vulkan 1.2 runs it
//	_da     reaches page pools, and other memory, by device address
//	_half   multiplies pairs of halves without matrices; _dot by an instruction for that
//	_cm     multiplies by cooperative matrices of f16, or stands beside what does
//	_cmb    the same of bf16
//	_lanes  passes numbers on inside subgroups; also before _da
//	_norm   norms its outputs; before _da or _cm
//	_raw    quantises its queries itself; before _cm
//
// Requires says which features a kernel needs.
package shaders

//go:generate ../scripts/shaders

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"slices"
)

//go:embed spv/*.spv
var spv embed.FS

// ErrUnknown is what Get returns, wrapped, for a name that is not in Names.
var ErrUnknown = errors.New("no such kernel")

// Kernel is one compiled shader.
type Kernel struct {
	Name     string   // such as "kv_insert_da"
	SPIRV    []byte   // the module, little-endian words; a copy of the caller's own
	Requires []string // features it needs, in Vulkan's spelling (see vk.Caps.Missing); nil for none
}

// Get returns the kernel of that name. The error is ErrUnknown, wrapped.
func Get(name string) (Kernel, error) {
	code, err := module(name)
	if err != nil {
		return Kernel{}, fmt.Errorf("shaders: get %q: %w", name, err)
	}
	return Kernel{Name: name, SPIRV: slices.Clone(code), Requires: Requires(name)}, nil
}

// Names lists every kernel, sorted.
func Names() []string { return slices.Sorted(maps.Keys(moduleOf)) }

// Requires returns the features that a kernel needs, nil for none or for a name
// that does not exist. It is Get without the code.
func Requires(name string) (list []string) {
	if of, ok := requires[name]; ok {
		return slices.Clone(of)
	}
	if _, ok := moduleOf[name]; ok {
		for _, w := range wordsOf(name) {
			list = append(list, w.requires...)
		}
	}
	return list
}
