package pipelines

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

// The form of the model holds where times are known: on an H100 matrix units and shared memory one
// after the other take 0.8 to 1.05 of what was measured, the larger of both less than 0.65. Its
// matrices do 658 TFLOP/s at 1.85 GHz, its shared memory 128 bytes a clock.
func TestModelOnH100(t *testing.T) {
	const units, hertz, flops = 132, 1.85e9, 658e12
	for _, c := range []struct {
		name     string
		products float64 // of 16 x 16 x 16
		bytes    float64 // of shared memory for each of them
		measured float64 // seconds
	}{
		// docs/design/prefill.md: 4096 queries of 64 heads and 640 rows; 256 products and 950
		// clocks a tile.
		{"prefill attention", 4096 * 4 * 40 * 64, 950 * 128 / 256., 1333e-6},
		// docs/design/linear-many.md, wo_b, 4096 x 4096 x 8192 in bf16: a step of 128 x 128 x 32 is
		// 128 products, 16 KiB stored and 4 subgroups that load 8 KiB each.
		{"proj_linear_cm", 256 * 256 * 512, 48 << 10 / 128., 975e-6},
		{"proj_linear_whole", 256 * 256 * 512, 48 << 10 / 128., 830e-6},
	} {
		x := Clocks{Issue: c.products * 8192 / flops * hertz, Shared: c.products * c.bytes / 128 / units}
		most, least := x.Most()/hertz/c.measured, x.Least()/hertz/c.measured
		assert.True(t, most > 0.8 && most < 1.05, "%s: the sum is %.2f of the time", c.name, most)
		assert.True(t, least < 0.65, "%s: the larger is %.2f of the time", c.name, least)
	}
}

// What the listing of a kernel gives, by hand: prefill of 32 heads on navi31 in docs/design/amd.md.
func TestModelClocks(t *testing.T) {
	k := &Chosen{Kernel: "attn_prefill_cm", Subgroup: 32, Listing: Listing{amd: true,
		Loop: Counts{Matrix: 16, Vector: 353, LDS: 130, Gather: 64, FragmentClocks: 2 * 40, OtherClocks: 64 + 26}},
		Accesses: []Access{{Clocks: 4, least: 2, eight: true}, {Clocks: 3, least: 2}}}
	g := GPUs[1]
	require.Equal(t, "RX 7900 XTX", g.Name)
	c := Choice{Op: "prefill", Tokens: 4096, Kernels: []Chosen{*k}}
	w, ok := c.work()
	require.True(t, ok)
	assert.EqualValues(t, 4096*4*40*64, w.products)
	x := g.clocks(k, 128) // of a workgroup for a tile, if one unit did it
	assert.InDelta(t, 4*(353+16*32), x.Issue*96, 1e-6)
	assert.InDelta(t, 8*(2*80+1.5*90), x.Shared*96, 1e-6)
	k.Subgroup = 64
	assert.InDelta(t, 4*(2*353+16*32), g.clocks(k, 128).Issue*96, 1e-6)

	a := &vk.Adapter{Name: "AMD Radeon RX 7900 XTX (RADV NAVI31)", Driver: vk.DriverRADV}
	text := ModelTable(a, []Choice{c, {Op: "product wq_b", Tokens: 1}, {Op: "inverse rope", Tokens: 1}})
	assert.Contains(t, text, "| RX 7900 XTX | prefill | 4096 | attn_prefill_cm |")
	assert.Contains(t, text, "| Strix Halo | product wq_b | 1 | - | 131.")
	assert.NotContains(t, text, "inverse rope")
	assert.Contains(t, ModelTable(&vk.Adapter{Name: "llvmpipe"}, nil), "no estimates")
}
