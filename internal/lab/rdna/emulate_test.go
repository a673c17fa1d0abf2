package rdna_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/rdna"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// emulated returns the emulated GPU as machine and as device.
func emulated(t *testing.T) (*rdna.Machine, *vk.Device) {
	t.Helper()
	gpu := testkit.Emulated()
	if gpu == nil {
		t.Skip("no GPU is emulated: " + testkit.EmulateEnv)
	}
	return gpu, testkit.Device(t)
}

// shortCases is how many random cases of an operation short tests run.
const shortCases = 2

// TestOperations runs random cases of all operations on the emulated GPU, in the variant that its
// profile chooses and in base.
func TestOperations(t *testing.T) {
	gpu, dev := emulated(t)
	most := 0
	if testing.Short() {
		most = shortCases
	}
	seed := testkit.Seed(t)
	gpu.Order, gpu.Seed = rdna.Order(seed%3), seed
	for _, op := range verify.All() {
		t.Run(op.Name, func(t *testing.T) {
			run(t, gpu, dev, verify.Options{Ops: []string{op.Name}, Seed: seed, Most: most, Best: true})
			if op.Name != "layer" { // whose variants are attention's
				run(t, gpu, dev, verify.Options{Ops: []string{op.Name}, Seed: seed, Most: most, Variants: []string{"base"}})
			}
		})
	}
	var n uint64
	tested := rdna.Tested(t)
	for op, c := range gpu.Executed() {
		n += c
		for part := range strings.SplitSeq(op, " :: ") {
			assert.True(t, tested[strings.Replace(part, "v_dual_", "v_", 1)], "testdata/opcodes.txt has no %s", part)
		}
	}
	fmt.Fprintf(os.Stderr, "%.1f M instructions of waves, %.2f M a second\n", float64(n)/1e6, float64(n)/1e6/gpu.Took().Seconds())
}

// TestVectors runs the recorded cases.
func TestVectors(t *testing.T) {
	gpu, dev := emulated(t)
	if testing.Short() {
		t.Skip("short")
	}
	for _, op := range verify.All() {
		t.Run(op.Name, func(t *testing.T) {
			for _, dir := range testkit.Folders(t) {
				run(t, gpu, dev, verify.Options{Ops: []string{op.Name}, Best: true, Vectors: []string{dir}})
			}
		})
	}
}

// run fails the test where a case does, or where the machine found something in it.
func run(t *testing.T, gpu *rdna.Machine, dev *vk.Device, opts verify.Options) {
	t.Helper()
	var sum verify.Summary
	_, err := verify.Run(t.Context(), dev, opts, func(r verify.Row) {
		for _, f := range gpu.Faults() {
			t.Errorf("%s.%s, %s: %v", r.Op, r.Case, r.Variant, f)
		}
		sum.Add(r.Status)
		assert.NotEqual(t, verify.Fail, r.Status, "%s.%s, %s: %s", r.Op, r.Case, r.Variant, r.Detail)
	})
	require.NoError(t, err)
	fmt.Fprintf(os.Stderr, "%s: %d passed, %d failed, %d skipped\n", t.Name(), sum.Pass, sum.Fail, sum.Skip)
}

// TestCounts counts decode of one token and prefill of two, and prints what their kernels do.
func TestCounts(t *testing.T) {
	gpu, dev := emulated(t)
	gpu.Count = true
	defer func() { gpu.Count = false }()
	cases := map[string]string{"flashmla_sparse_decode": "t1_h64_swa128_topk321", "flashmla_sparse_prefill": "t2_h128_topk69_s321"}
	for op, c := range cases {
		gpu.Counted()
		run(t, gpu, dev, verify.Options{Ops: []string{op}, Cases: []string{c}, Seed: 1, Best: true})
		list := gpu.Counted()
		require.NotEmpty(t, list)
		for _, n := range list {
			fmt.Fprintf(os.Stderr, "%s, program %d: %d launches, %d workgroups, %d waves of %d:",
				op, n.Program, n.Launches, n.Groups, n.Waves,
				n.Lanes)
			for _, class := range slices.Sorted(maps.Keys(n.Instructions)) {
				fmt.Fprintf(os.Stderr, " %s %d,", class, n.Instructions[class])
			}
			fmt.Fprintf(os.Stderr, " shared memory %d clocks of at least %d, memory %d B in %d lines\n", n.SharedClocks, n.SharedLeast,
				n.Bytes, n.Lines)
			assert.GreaterOrEqual(t, n.SharedClocks, n.SharedLeast)
			assert.GreaterOrEqual(t, n.Bytes, n.Lines)
		}
	}
}
