package rdna_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestOperations runs the random cases of all operations on the emulated GPU.
func TestOperations(t *testing.T) {
	gpu := testkit.Emulated()
	if gpu == nil {
		t.Skip("no GPU is emulated: " + testkit.EmulateEnv)
	}
	dev := testkit.Device(t)
	for _, op := range verify.All() {
		t.Run(op.Name, func(t *testing.T) {
			testkit.Device(t)
			var pass, fail int
			_, err := verify.Run(t.Context(), dev, verify.Options{Ops: []string{op.Name}, Seed: testkit.Seed(t)}, func(r verify.Row) {
				for _, f := range gpu.Faults() {
					t.Errorf("%s.%s, %s: %v", r.Op, r.Case, r.Variant, f)
				}
				switch r.Status {
				case verify.Pass:
					pass++
				case verify.Fail:
					fail++
					t.Errorf("%s.%s, %s: %s", r.Op, r.Case, r.Variant, strings.TrimSpace(r.Detail))
				}
			})
			require.NoError(t, err)
			t.Logf("%d passed, %d failed", pass, fail)
		})
	}
	var n uint64
	for _, c := range gpu.Executed() {
		n += c
	}
	t.Logf("%.1f M instructions of waves, %.2f M a second", float64(n)/1e6, float64(n)/1e6/gpu.Took().Seconds())
}
