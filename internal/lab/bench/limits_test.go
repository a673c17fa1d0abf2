package bench

import (
	"errors"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// What measures a device multiplies in subgroups of the size that operations multiply in, and
// is refused where its workgroups are too large.
func TestMeasuringKernels(t *testing.T) {
	for _, d := range knowncaps.Devices() {
		if d.Name == "least" {
			if _, err := copyBandwidth(t.Context(), testkit.As(t, d), 1); !errors.Is(err, vk.ErrMissingFeature) {
				t.Errorf("%s: %v, want a missing feature", d.Name, err)
			}
			continue
		}
		code, err := shaders.Get("bench_matrix_cm")
		if err != nil {
			t.Fatal(err)
		}
		if d.Caps.Missing(code.Requires) != nil {
			continue
		}
		k, err := matrixKernel(testkit.As(t, d), code, d.Caps.CoopMat[0])
		if err != nil {
			t.Errorf("%s: %v", d.Name, err)
		} else if got := k.SubgroupSize(); got != d.Caps.MinSubgroupSize || k.Constants()[3] != 4*got {
			t.Errorf("%s: subgroups of %d, want %d, workgroups of %d", d.Name, got, d.Caps.MinSubgroupSize, k.Constants()[3])
		}
	}
}
