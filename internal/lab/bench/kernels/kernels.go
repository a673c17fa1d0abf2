// Package kernels holds the compiled kernels of measurements, which also stand for a program's own
// kernels in tests. They use the library's GLSL, and are no part of the library.
package kernels

//go:generate ../../../../scripts/shaders

import (
	"embed"
	"fmt"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

//go:embed spv/*.spv
var spv embed.FS

// Get returns the kernel of that name.
func Get(name string) (shaders.Kernel, error) {
	code, err := spv.ReadFile("spv/" + name + ".spv")
	if err != nil {
		return shaders.Kernel{}, fmt.Errorf("kernels: get %q: %w", name, shaders.ErrUnknown)
	}
	needs, err := spirv.Features(code)
	return shaders.Kernel{Name: name, SPIRV: code, Requires: needs}, err
}
