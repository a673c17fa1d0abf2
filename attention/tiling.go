package attention

import (
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// tiling is one way to divide an attention among workgroups: a kernel, what it is specialised
// for, and what the plan needs to know of it.
type tiling struct {
	stem      string   // of the kernel
	heads     int      // of a workgroup
	tile      int      // rows of cache at a time
	constants []uint32 // specialisation constants after heads and tile
	subgroup  uint32   // invocations of a subgroup; 0: any
	perUnit   int      // workgroups that share a compute unit; 0: one
	cost      float64  // of a tile, in the unit of tuning.Attention
	code      float64  // of fetching its instructions, in the same unit
	rotates   bool     // it can undo the RoPE of whole rows of output
	norms     bool     // it can norm queries
	rows      int      // how rows lie in shared memory, of shaders/lib/cm_rows.glsl
	places    bool     // its kernel has a constant for rows in front of those of records
}

// elements are the types of matrix elements, by build.
var elements = map[string]string{opkit.CM: "f16", opkit.CMB: "bf16"}

// tilings returns the tilings of a build of a stem, "attn_decode" or "attn_prefill", the one
// with the most heads per workgroup first.
func tilings(tune *tuning.Profile, caps *vk.Caps, stem, variant string, heads int) ([]tiling, error) {
	list := []tiling{plainTiling(&tune.Attention, caps, heads)}
	if element := elements[variant]; element != "" {
		f, err := matrixFit{caps, tune}, error(nil)
		if stem == "attn_decode" {
			list, err = f.decodeTilings(element, heads)
		} else {
			list, err = f.prefillTilings(element, heads)
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range list {
		list[i].stem = stem
	}
	return list, nil
}

// chooseBuild picks a build of a stem: the one that want names, else the best that the device
// has the features and a matrix shape for. Base gives way to da where maxBytes exceeds what a
// descriptor holds. dev is the adapter's, nil where it is not open.
func chooseBuild(tune *tuning.Profile, a *vk.Adapter, dev *vk.Device, stem, want string, maxBytes uint64,
	heads int) (variant string, list []tiling, err error) {
	fit := func(v string) (err error) {
		list, err = tilings(tune, &a.Caps, stem, v, heads)
		return err
	}
	if dev == nil {
		variant, err = pkg.ChooseFit(tune, a, stem, opkit.Builds(stem), want, maxBytes, fit)
	} else {
		variant, err = pkg.ChooseOn(dev, stem, opkit.Builds(stem), want, maxBytes, fit)
	}
	return variant, list, err
}
