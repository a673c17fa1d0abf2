// Package shaders holds the compiled compute kernels of vkmla: SPIR-V made from
// the GLSL beside it, embedded so that a program needs no shader compiler.
//
// A kernel's name is the stem of its source, with suffixes where it needs optional features of a
// device, or does something else than the one without. builds.txt has its source and what is
// defined for it. A test holds the list of suffixes closed:
//
//	(none)  any device with Vulkan 1.2 runs it
//	_da     reaches page pools, and other memory, by device address
//	_dot    multiplies pairs of halves without matrices, by an instruction for that
//	_cm     multiplies by cooperative matrices of f16, or stands beside what does
//	_cmb    the same of bf16
//	_lanes  passes numbers on inside subgroups; also before _da
//	_norm   norms its outputs; before _da or _cm
//	_raw    quantises its queries itself; before _cm
package shaders

//go:generate ../scripts/shaders

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/spirv"
)

//go:embed spv/*.spv
var spv embed.FS

// ErrUnknown is returned by Get, wrapped, for a name that is not in Names.
var ErrUnknown = errors.New("no such kernel")

// Kernel is one compiled shader.
type Kernel struct {
	Name     string   // such as "kv_insert_da"
	SPIRV    []byte   // the module, little-endian words; a copy of the caller's own
	Requires []string // features it needs, in Vulkan's spelling (see vk.Caps.Missing); nil for none
}

// Get returns the kernel of that name. The error is ErrUnknown, wrapped.
func Get(name string) (Kernel, error) {
	code, err := spv.ReadFile("spv/" + name + ".spv")
	if err != nil {
		return Kernel{}, fmt.Errorf("shaders: get %q: %w", name, ErrUnknown)
	}
	return Kernel{Name: name, SPIRV: code, Requires: features(code)}, nil
}

// names lists every kernel, sorted.
var names = func() (list []string) {
	files, _ := fs.ReadDir(spv, "spv") // the root of an embedded tree
	for _, f := range files {
		list = append(list, strings.TrimSuffix(f.Name(), ".spv"))
	}
	slices.Sort(list)
	return list
}()

// Names lists every kernel, sorted.
func Names() []string { return slices.Clone(names) }

// Requires returns the features that a kernel needs, nil for none or for a name that does not
// exist. It reads no more of the module than its capabilities.
func Requires(name string) []string {
	file, err := spv.Open("spv/" + name + ".spv")
	if err != nil {
		return nil
	}
	defer file.Close()
	begin := make([]byte, 512)
	n, _ := file.Read(begin) // of an embedded file
	return features(begin[:n])
}

// features returns what a module's capabilities stand for. A test finds none that is unknown.
func features(code []byte) []string {
	list, _ := spirv.Features(code)
	return list
}
