package projection

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
)

// Sizes of a query head, of a K row and of a head of the attention's output.
const (
	D       = cache.D // numbers of a head
	NopeDim = 448     // of these the first carry no position,
	RopeDim = 64      // the last are rotated
)

// DefaultEps is what every RMS norm of the model adds to the mean square.
const DefaultEps float32 = 1e-6

// Names of the variants of the kernels here.
const (
	VariantCMB  = opkit.CMB  // cooperative matrices of bf16; large memory by device address
	VariantCM   = opkit.CM   // cooperative matrices of f16; large memory by device address
	VariantBase = opkit.Base // any Vulkan 1.2 device; all memory bound as storage buffers
	VariantDA   = opkit.DA   // as base, with large memory of any size by device address
)

// pkg begins the errors of this package and makes its kernels.
const pkg = opkit.Package("projection")

// pushLayouts names the push-constant structure of each kernel; a test compares
// them with the SPIR-V.
var pushLayouts = map[string]any{
	"proj_qkv_norm": projQkvNormPush{},
	"proj_q_insert": projQInsertPush{},
}
