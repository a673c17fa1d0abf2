package opkit

import (
	"slices"

	"github.com/vkmla/vkmla/vk"
)

// MatrixRows is `rows`, one of those of shaders/lib/cm_rows.glsl, where the lanes of a device hold
// the operands of a build, CM or CMB, as that says, and 0 elsewhere, as with a driver that only
// compiles.
//
// It asks num_rows, which loads with the functions of the kernels and compares what comes with
// coopMatLoad's: a kernel of one workgroup, once for each device and shape.
//
// Errors: those of building and running a kernel.
func (p Package) MatrixRows(dev *vk.Device, variant string, m, n, k, subgroup, rows int) (int, error) {
	if rows == 0 {
		return 0, nil
	}
	if f := factsOf(dev); f != nil {
		if f.Rows(m, n, k, subgroup) != rows {
			rows = 0
		}
		return rows, nil
	}
	differ, err := p.ask(dev, "rows of matrices", subgroup, Spec{Stem: "num_rows", Variant: variant, Bindings: []vk.Access{vk.Write},
		Subgroup: uint32(subgroup), Constants: Constants(subgroup, m, n, k, rows)})
	if err != nil {
		return 0, err
	}
	if slices.Max(differ) > 0 {
		rows = 0
	}
	return rows, nil
}

// MatrixCodes tells whether a device multiplies matrices of E4M3 and sums them up as exactly as f32
// can, which Vulkan does not promise, with operands that lie as one of lib/cm_rows.glsl says: as
// `rows` where the lanes of the device hold them so, else as 0. It asks num_codes, a kernel of one
// workgroup, once for each device, shape and rows. It is false with a driver that only compiles.
//
// Errors: those of building and running a kernel.
func (p Package) MatrixCodes(dev *vk.Device, m, n, k, subgroup, rows int) (exact bool, as int, err error) {
	exact, err = p.codesAs(dev, m, n, k, subgroup, rows)
	if rows != 0 && !exact && err == nil {
		rows = 0
		exact, err = p.codesAs(dev, m, n, k, subgroup, rows)
	}
	return exact, rows, err
}

func (p Package) codesAs(dev *vk.Device, m, n, k, subgroup, rows int) (bool, error) {
	if f := factsOf(dev); f != nil {
		return rows != 0 && f.Rows(m, n, k, subgroup) == rows, nil
	}
	differ, err := p.ask(dev, "matrices of E4M3", subgroup, Spec{Stem: "num_codes", Variant: CM, Bindings: []vk.Access{vk.Write},
		Subgroup: uint32(subgroup), Constants: Constants(subgroup, m, n, k, rows)})
	return err == nil && slices.Max(differ) == 0, err
}

// ConvertsCodes tells whether a device converts all E4M3 codes to f32 exactly. It asks num_float8,
// a kernel of one workgroup, once for each device. It is false with a driver that only compiles.
//
// Errors: those of building and running a kernel.
func (p Package) ConvertsCodes(dev *vk.Device) (bool, error) {
	if factsOf(dev) != nil {
		return true, nil
	}
	subgroup := int(dev.Caps().MinSubgroupSize)
	differ, err := p.ask(dev, "conversions of E4M3", subgroup, Spec{Stem: "num_float8", Variant: CM, Bindings: []vk.Access{vk.Write},
		Subgroup: uint32(subgroup), Constants: Constants(subgroup)})
	return err == nil && slices.Max(differ) == 0, err
}
