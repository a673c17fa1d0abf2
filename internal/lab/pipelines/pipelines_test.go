package pipelines_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/vk"
)

// others are kernels that no operation of a step uses.
var others = []string{"num_formats", "num_elements_cm", "num_elements_cmb", "attn_pack_indices", "attn_placed_indices", "kv_table_update",
	"proj_linear_placed_cm"}

// besideMatrices are kernels that need no matrices and are used where there are some.
var besideMatrices = []string{"proj_linear_tokens1to8_cm", "proj_linear_tokens1to8_norm_cm", "proj_linear_chain_cm", "proj_linear_sum"}

// byLayout are kernels that are used, or not, according to how a device's matrices lie in
// lanes, as another kernel finds, which has to run.
var byLayout = []string{"attn_decode_cm", "attn_decode_cmb", "attn_decode_lanes_cm", "attn_decode_lanes_cmb",
	"attn_prefill_cm", "attn_prefill_cmb", "attn_prefill_lanes_cm", "attn_prefill_lanes_cmb",
	"idx_logits_cm", "idx_logits_lanes_cm", "idx_logits_lanes_raw_cm", "idx_logits_prompt_cm",
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
	in, err := vk.NewInstance(vk.InstanceOptions{AppName: "vkmla tests"})
	require.NoError(t, err)
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	require.NoError(t, err)
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
