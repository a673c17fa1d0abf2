package pipelines_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// others are kernels that no operation of a step uses.
var others = []string{"num_formats", "num_elements_cm", "num_elements_cmb", "attn_pack_indices", "attn_placed_indices", "kv_table_update"}

// besideMatrices are kernels that need no matrices and are used where there are some.
var besideMatrices = []string{"proj_linear_tokens1to8_cm", "proj_linear_tokens1to8_norm_cm", "proj_linear_chain_cm", "proj_linear_sum"}

// byLayout are kernels that are used, or not, according to how a device's matrices lie in
// lanes, as another kernel finds, which has to run.
var byLayout = []string{"attn_decode_cm", "attn_decode_cmb", "attn_decode_lanes_cm", "attn_decode_lanes_cmb",
	"attn_prefill_cm", "attn_prefill_cmb", "attn_prefill_lanes_cm", "attn_prefill_lanes_cmb",
	"idx_logits_cm", "idx_logits_lanes_cm", "idx_logits_lanes_raw_cm", "idx_logits_lanes_picks_cm", "idx_logits_prompt_cm",
	"idx_topk_tiles_da", "num_layout_cmb", "num_rows_cm", "num_subnormals_cm",
	"proj_linear_tokens8to32_cm", "proj_linear_tokens8to32_cmb", "proj_linear_tokens32to64_cm", "proj_linear_tokens32to64_cmb"}

// byRegisters are kernels that are used where an invocation has the registers, and never
// on a CPU.
var byRegisters = []string{"proj_linear_whole_cm", "proj_linear_whole_cmb"}

// TestPipelines compiles everything with the driver at hand: every kernel that the
// device can run is built, and no hot one spills, where the driver tells. With
// VKMLA_TEST_COMPILE_ONLY=1 the driver may be one that executes nothing, such as RADV
// without its hardware, and must tell.
func TestPipelines(t *testing.T) {
	only := os.Getenv("VKMLA_TEST_COMPILE_ONLY") == "1"
	if testing.Short() && !only {
		t.Skip("takes a while")
	}
	a := adapter(t)
	dev, err := a.Open(vk.DeviceOptions{Statistics: true})
	require.NoError(t, err)
	defer dev.Close()
	require.NoError(t, pipelines.Build(t.Context(), dev, nil))
	for _, name := range pipelines.Unbuilt(dev) {
		assert.False(t, !slices.Contains(others, name) && !slices.Contains(byLayout, name) &&
			!slices.Contains(byRegisters, name) &&
			(dev.Caps().Features["coopmat.f16.f32"] || !slices.Contains(besideMatrices, name)), "nothing builds %s", name)
	}
	assert.False(t, only && dev.Caps().ComputeUnits == 0, "the driver does not tell how many compute units there are")
	tells := dev.Caps().Features["pipelineExecutableInfo"]
	if !tells && !only {
		return
	}
	rows, err := pipelines.Report(dev)
	require.NoError(t, err)
	hot := 0
	for _, r := range rows {
		if r.Hot {
			hot++
		}
		assert.False(t, only && (r.Registers <= 0 || r.Shared < 0 || r.Spills < 0 || r.Occupancy <= 0),
			"%s: the driver does not say enough: %+v", r, r)
		if r.Spills > 0 {
			t.Logf("%s spills %.0f", r, r.Spills)
		}
	}
	for _, r := range pipelines.Wrong(rows) {
		t.Errorf("%s is hot and spills %.0f", r, r.Spills)
	}
	t.Logf("%s, %s %s: %d kernels, %d hot", a.Name, a.DriverName, a.DriverInfo, len(rows), hot)
	assert.NotEqual(t, 0, hot, "no hot kernel was built")
}

func TestHot(t *testing.T) {
	for _, c := range []struct {
		name            string
		with, elsewhere bool
	}{
		{"attn_decode_cm", true, false}, {"attn_decode_cmb", true, false}, {"attn_decode_lanes_cmb", true, false}, {"attn_decode_da", false, true}, {"attn_prefill", false, true}, {"attn_decode", false, true}, {"attn_decode_dot", false, true},
		{"idx_logits_cm", true, false}, {"idx_logits_lanes_cm", true, false}, {"idx_logits_lanes_raw_cm", true, false},
		{"proj_linear_tokens1to8_cm", true, true}, {"proj_linear_chain_cm", true, false}, {"proj_linear_tokens32to64_cmb", true, false}, {"proj_linear_whole_cm", true, false}, {"proj_linear_sum", false, false}, {"kv_insert", false, false},
	} {
		require.Equal(t, c.with, pipelines.Hot(c.name, true),
			"%s: hot with matrices %v, without %v", c.name, !c.with, !c.elsewhere)
		assert.Equal(t, c.elsewhere, pipelines.Hot(c.name, false),
			"%s: hot with matrices %v, without %v", c.name, !c.with, !c.elsewhere)
	}
	assert.True(t, strings.HasPrefix((pipelines.Row{Kernel: "a", Constants: []uint32{1, 2}}).String(), "a(1, 2)"),
		"name of a row")
}

// variantOf returns the variant of an operation that was made.
func variantOf[O interface{ Variant() string }](o O, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return o.Variant(), nil
}

// A device that takes subnormals of binary16 for zeros gets builds without such numbers, and a
// build with them that is asked for by name is refused. One that promises to keep them, or is
// found to, gets the best.
func TestFlushedSubnormals(t *testing.T) {
	for _, c := range []struct {
		name          string
		promises, has bool
	}{{"promises subnormals", true, false}, {"has subnormals", false, true}, {"flushes subnormals", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			all := knowncaps.Devices()
			d := all[slices.IndexFunc(all, func(d knowncaps.Device) bool { return d.Name == "Turing" })]
			d.Name = c.name
			if !c.promises {
				delete(d.Caps.Features, "shaderDenormPreserveFloat16")
			}
			dev := testkit.As(t, d)
			dev.Adapter().Facts.(*opkit.Facts).Flushes = !c.has
			for op, build := range map[string]func(variant string) (string, error){
				"linear": func(v string) (string, error) {
					return variantOf(projection.NewLinear(dev, projection.LinearConfig{N: 256, K: 256, Weights: projection.FormatFP8F32,
						Out: tensor.BF16, Variant: v, OnDemand: true}))
				},
				"decode": func(v string) (string, error) {
					return variantOf(attention.NewDecoder(dev,
						attention.DecoderConfig{Heads: 64, WindowPage: 64, Variant: v, OnDemand: true}))
				},
				"prefill": func(v string) (string, error) {
					return variantOf(attention.NewPrefill(dev, attention.PrefillConfig{Heads: 64, Variant: v}))
				},
				"logits": func(v string) (string, error) {
					return variantOf(indexer.NewLogits(dev,
						indexer.LogitsConfig{Heads: 64, Format: cache.IndexKeyFP8, Page: 64, Variant: v}))
				},
			} {
				best, err := build("")
				require.NoError(t, err, op)
				_, forced := build(opkit.CM)
				if c.promises || c.has {
					assert.Equal(t, opkit.CM, best, op)
					assert.NoError(t, forced, op)
				} else {
					assert.Contains(t, []string{opkit.Base, opkit.DA}, best, op)
					assert.ErrorIs(t, forced, vk.ErrMissingFeature, op)
				}
			}
		})
	}
}

// TestNoWorse holds what the driver's compiler makes of the kernels that V4-Flash and V4.1-Flash
// launch against what is recorded for the GPU: no more spills, no lower occupancy, no more clocks
// by the compiler. It wants RADV or ANV with VKMLA_TEST_COMPILE_ONLY=1. Other versions make
// something else. The file names its version.
func TestNoWorse(t *testing.T) {
	a := compileOnly(t)
	gpu := gateName(a)
	if gpu == "" {
		t.Skipf("%s is neither RADV's nor ANV's", a.Name)
	}
	list, err := pipelines.Inspect(a, "")
	require.NoError(t, err)
	now := pipelines.GateTable(list)
	assert.Greater(t, strings.Count(now, "\n"), 20, "kernels")

	path := filepath.Join("testdata", gpu+".txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(a.DriverInfo+"\n"+now), 0o644))
		return
	}
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		t.Skipf("nothing is recorded of %s", gpu)
	}
	require.NoError(t, err)
	version, recorded, _ := strings.Cut(string(text), "\n")
	worse, err := pipelines.Worse(recorded, now)
	require.NoError(t, err)
	if version != a.DriverInfo {
		t.Logf("recorded of %s, this is %s: %d kernels would be worse", version, a.DriverInfo, len(worse))
		return
	}
	assert.Empty(t, worse, "if this is meant, run the test with -update")
	t.Logf("%s: %d kernels no worse than recorded", gpu, strings.Count(now, "\n"))
}

// gateName names what is recorded of a GPU: its driver, and what that calls it in parentheses, as
// radv-navi31 or anv-lnl. It is empty for other drivers.
func gateName(a *vk.Adapter) string {
	driver := map[vk.DriverID]string{tuning.DriverRADV: "radv", tuning.DriverANV: "anv"}[a.Driver]
	words := strings.Fields(strings.ToLower(strings.Trim(a.Name[strings.LastIndex(a.Name, "(")+1:], ")")))
	if driver == "" || len(words) == 0 {
		return ""
	}
	if words[0] == driver {
		words = words[1:]
	}
	return strings.Join(append([]string{driver}, words...), "-")
}

// The gate sees each way to be worse, and lets what is better pass.
func TestWorse(t *testing.T) {
	const was = "a(1,2): spills 0, occupancy 8, clocks 1000\nb(): spills 0, occupancy 4, clocks 200\nc(): spills 11, occupancy -1, clocks 9\n"
	for now, want := range map[string]string{
		was: "",
		"a(1,2): spills 0, occupancy 10, clocks 900\n":  "",
		"a(1,2): spills 0, occupancy 8, clocks 1015\n":  "",
		"a(1,2): spills 3, occupancy 8, clocks 1000\n":  "a(1,2) spills 3 registers, recorded 0",
		"a(1,2): spills 0, occupancy 7, clocks 1000\n":  "a(1,2): occupancy 7, recorded 8",
		"a(1,2): spills 0, occupancy 8, clocks 1030\n":  "a(1,2): 1030 clocks, recorded 1000",
		"c(): spills 11, occupancy -1, clocks 9\n":      "",
		"c(): spills 12, occupancy -1, clocks 9\n":      "c() spills 12 registers, recorded 11",
		"a(1,3): spills 0, occupancy 8, clocks 1000\n":  "a(1,3) is not recorded",
		"b(): spills 0, occupancy 4, clocks 204.0001\n": "b(): 204 clocks, recorded 200",
	} {
		got, err := pipelines.Worse(was, now)
		require.NoError(t, err)
		assert.Equal(t, want, strings.Join(got, "; "), now)
	}
	for _, line := range []string{"nonsense\n", "d(): spills 0, occupancy 8, clocks x\n", "d(): spills 0, occupancy 8, clocks 9, modelled 8\n"} {
		_, err := pipelines.Worse(line, was)
		assert.Error(t, err, line)
	}
}
