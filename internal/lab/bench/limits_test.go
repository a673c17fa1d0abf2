package bench

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench/kernels"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// What measures a device multiplies in subgroups of the size that operations multiply in, and
// is refused where its workgroups are too large.
func TestMeasuringKernels(t *testing.T) {
	for _, d := range knowncaps.Devices() {
		if d.Name == "least" {
			_, err := copyBandwidth(t.Context(), testkit.As(t, d), 1)
			assert.ErrorIs(t, err, vk.ErrMissingFeature, d.Name)
			continue
		}
		code, err := kernels.Get("bench_matrix_cm")
		require.NoError(t, err)
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
