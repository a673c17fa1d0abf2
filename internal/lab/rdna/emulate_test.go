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

// shortLayers are the layers of short tests, on all GPUs together one of each kind.
var shortLayers = map[string][]string{"navi31": {"c4a", "recorded_c128a"}, "gfx1201": {"v41", "recorded_window"},
	"strix_halo": {"c4a_mxfp4", "recorded_c4a"}, "navi21": {"c128a", "v41_v4_records"}}

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
			if op.Name == "layer" { // whose variants are attention's
				o := verify.Options{Ops: []string{op.Name}, Seed: seed, Best: true}
				if testing.Short() {
					o.Cases = shortLayers[os.Getenv(testkit.EmulateEnv)]
				}
				run(t, gpu, dev, o)
				return
			}
			passed := run(t, gpu, dev, verify.Options{Ops: []string{op.Name}, Seed: seed, Most: most, Best: true})
			if delete(passed, "base"); len(passed) > 0 { // base alone, where no other variant takes a case
				run(t, gpu, dev, verify.Options{Ops: []string{op.Name}, Seed: seed, Most: most, Variants: []string{"base"}})
			}
		})
	}
	var n uint64
	for _, c := range gpu.Executed() {
		n += c
	}
	fmt.Printf("%.1f M instructions of waves, %.2f M a second\n", float64(n)/1e6, float64(n)/1e6/gpu.Took().Seconds())
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

// run fails the test where a case does, or where the machine found something in it. It prints how
// many cases of each operation and variant passed. scripts/test makes a table of these lines.
func run(t *testing.T, gpu *rdna.Machine, dev *vk.Device, opts verify.Options) (passed map[string]int) {
	t.Helper()
	passed = map[string]int{}
	_, err := verify.Run(t.Context(), dev, opts, func(r verify.Row) {
		for _, f := range gpu.Faults() {
			t.Errorf("%s.%s, %s: %v", r.Op, r.Case, r.Variant, f)
		}
		if r.Status == verify.Pass {
			passed[r.Variant]++
		}
		assert.NotEqual(t, verify.Fail, r.Status, "%s.%s, %s: %s", r.Op, r.Case, r.Variant, r.Detail)
	})
	require.NoError(t, err)
	for _, v := range slices.Sorted(maps.Keys(passed)) {
		what := v
		if opts.Vectors != nil {
			what = "recorded"
		}
		fmt.Printf("cases %s %s %s %d\n", os.Getenv(testkit.EmulateEnv), opts.Ops[0], what, passed[v])
	}
	return passed
}

// TestCounts counts what tokens of a C4A layer of V4 attend, recorded ones in decode and random
// ones in a prompt, and prints a line of Markdown for each kernel: launches, workgroups, waves,
// instructions by class, clocks of shared memory and the least, bytes and lines of memory, and
// clocks of a workgroup's vector instructions, shared memory and memory on a compute unit.
func TestCounts(t *testing.T) {
	gpu, dev := emulated(t)
	gpu.Count = true
	defer func() { gpu.Count = false }()
	for _, o := range []verify.Options{
		{Ops: []string{"flashmla_sparse_decode"}, Cases: []string{"h64_swa128_topk512"}, Best: true, Vectors: testkit.Folders(t)[:1]},
		{Ops: []string{"flashmla_sparse_prefill"}, Cases: []string{"t3_h64_topk640_s700"}, Best: true},
	} {
		gpu.Counted()
		run(t, gpu, dev, o)
		found := false
		for _, n := range gpu.Counted() {
			if !strings.HasPrefix(n.Kernel, "attn_") { // the driver's fills and copies, probes of the device
				continue
			}
			found = true
			fmt.Printf("| %s | `%s` | %d | %d | %d of %d |", os.Getenv(testkit.EmulateEnv), n.Kernel, n.Launches, n.Groups, n.Waves,
				n.Lanes)
			for _, class := range rdna.Classes {
				fmt.Printf(" %d |", n.Instructions[class])
			}
			fmt.Printf(" %d, %d | %d | %d | %d, %d, %d |\n", n.SharedClocks, n.SharedLeast, n.Bytes, n.Lines,
				n.VectorClocks/2/n.Groups, n.SharedClocks/n.Groups, n.Lines/n.Groups)
			assert.GreaterOrEqual(t, n.SharedClocks, n.SharedLeast)
			assert.GreaterOrEqual(t, n.Bytes, n.Lines)
		}
		assert.True(t, found, "no kernel of %s", o.Ops[0])
	}
}
