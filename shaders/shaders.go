// Package shaders holds the compiled compute kernels of vkmla: SPIR-V made from
// the GLSL beside it, embedded so that a program needs no shader compiler.
//
// A kernel's name is its output in builds.txt: the source's stem, with a suffix for a
// build that needs optional features of a device, or does more than the one without.
// Kernels that differ by a constant may be one output; choices.go has their names.
// A test holds the list of suffixes closed:
//
//	(none)  any device with Vulkan 1.2 runs it
//	_da     reaches page pools, and other memory, by device address
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
	"io/fs"
	"maps"
	"slices"
	"strings"
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
	return Kernel{Name: name, SPIRV: slices.Clone(code), Requires: slices.Clone(requires[name])}, nil
}

// Names lists every kernel, sorted.
func Names() []string {
	files, err := fs.ReadDir(spv, "spv")
	if err != nil {
		return nil
	}
	names, shared := slices.Collect(maps.Keys(choices)), map[string]bool{}
	for _, c := range choices {
		shared[c.module] = true
	}
	for _, f := range files {
		if stem, ok := strings.CutSuffix(f.Name(), ".spv"); ok && !shared[stem] {
			names = append(names, stem)
		}
	}
	slices.Sort(names)
	return names
}

// Requires returns the features that a kernel needs, nil for none or for a name
// that does not exist. It is Get without the code.
func Requires(name string) []string { return slices.Clone(requires[name]) }
