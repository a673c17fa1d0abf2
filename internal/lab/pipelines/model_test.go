package pipelines

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/vk"
)

// The form of the model holds where times are known, on an H100. Matrix units, or vector units, and
// shared memory one after the other take 0.8 to 1.05 of what was measured, the larger of both less
// than 0.65. Where the documents count what stands between products, too, the time lies between the
// larger and the sum, as the model says of AMD's: some of shared memory's clocks hide. An H100's
// matrices do 658 TFLOP/s at 1.85 GHz, its shared memory 128 bytes a clock, and a multiprocessor
// issues four instructions a clock. attn_decode_cm and idx_logits_cm are counted nowhere.
func TestModelOnH100(t *testing.T) {
	const units, hertz, flops = 132, 1.85e9, 658e12
	products := func(n, bytes float64) Clocks { // of 16 x 16 x 16, and bytes of shared memory for each of them
		return Clocks{Issue: n * 8192 / flops * hertz, Shared: n * bytes / 128 / units}
	}
	scores := func(keys, others, bytes float64) Clocks { // of 64 heads; others and bytes are of 16 keys
		c := products(keys/16*32, bytes/32)
		c.Issue += keys / 16 * others / 4 / units
		return c
	}
	for _, c := range []struct {
		name     string
		clocks   Clocks
		measured float64 // clocks
		all      bool    // instructions between products are counted
	}{
		// docs/design/prefill.md: 4096 queries of 64 heads and 640 rows; 256 products and 950
		// clocks a tile.
		{"prefill attention", products(4096*4*40*64, 950*128/256.), 1333e-6 * hertz, false},
		// docs/design/linear-many.md, wo_b, 4096 x 4096 x 8192 in bf16: a step of 128 x 128 x 32 is
		// 128 products, 16 KiB stored and 4 subgroups that load 8 KiB each.
		{"proj_linear_cm", products(256*256*512, 48<<10/128.), 975e-6 * hertz, false},
		{"proj_linear_whole", products(256*256*512, 48<<10/128.), 830e-6 * hertz, false},
		// docs/design/plain.md: a tile of 16 heads and 16 rows, by its instructions and loads.
		{"attention without matrices", Clocks{Issue: 3600, Shared: 2100}, 6900, false},
		// docs/design/decode.md: a tile of a full device, its products and other instructions.
		// Shared memory as in prefill.md, but that rows come as codes of 584 bytes.
		{"attn_decode_lanes", Clocks{Issue: 830 + 720, Shared: 980 - 128 + 16*584/128.}, 1800, true},
		// docs/design/logits.md: 16 keys take 329 instructions beside products, and all queries as
		// fragments; where tokens share keys 144, and the keys.
		{"idx_logits_lanes", scores(128*32768, 329, 64*128*2), 228e-6 * hertz, true},
		{"idx_logits_prompt", scores(4096*7680, 144, 16*128*2), 1308e-6 * hertz, true},
	} {
		most, least := c.clocks.Most()/c.measured, c.clocks.Least()/c.measured
		if c.all {
			assert.True(t, most > 1 && most < 1.5, "%s: the sum is %.2f of the time", c.name, most)
			assert.True(t, least > 0.65 && least < 1, "%s: the larger is %.2f of the time", c.name, least)
		} else {
			assert.True(t, most > 0.8 && most < 1.05, "%s: the sum is %.2f of the time", c.name, most)
			assert.True(t, least < 0.65, "%s: the larger is %.2f of the time", c.name, least)
		}
		t.Logf("%s: %.2f, %.2f", c.name, most, least)
	}
}

// What the listing of a kernel gives, by hand: prefill of 32 heads on navi31.
func TestModelClocks(t *testing.T) {
	loop := Counts{Matrix: 16, Vector: 353, Slow: 20, LDS: 130, FragmentClocks: 2 * 40, OtherClocks: 64 + 26}
	k := Chosen{Kernel: "attn_prefill_cm", Constants: []uint32{32, 16, 256, 32, 16, 16, 16, 4, 1, 1}, Subgroup: 32,
		Listing:  Listing{amd: true, Loop: loop, All: loop.plus(Counts{Vector: 1000, Dot: 100, OtherClocks: 10}, 1)},
		Accesses: []Access{{Clocks: 4, least: 2, eight: true}, {Clocks: 3, least: 2}}}
	g := GPUs[1]
	require.Equal(t, "RX 7900 XTX", g.Name)
	c := Choice{Op: "prefill", Tokens: 4096, Kernels: []Chosen{k}}
	e, ok := g.estimate(&c, &k)
	require.True(t, ok)
	assert.Equal(t, []float64{4096 * 2, 40, 4096 * 64 * 512 * 4}, []float64{e.groups, e.turns, e.bytes})
	assert.Equal(t, Clocks{4 * (353 + 20 + 16*32), 8 * (2*80 + 1.5*90)}, e.turn)
	assert.InDelta(t, (40*e.turn.Issue+4*1100)*8192/96, e.all.Issue, 1)
	assert.InDelta(t, (40*e.turn.Shared+8*1.5*10)*8192/96, e.all.Shared, 1)

	// A product of a subgroup of 64 takes as long as one of 32. E4M3 takes half of it.
	k.Subgroup = 64
	assert.Equal(t, Clocks{4 * (353 + 20 + 16*16), 8 * (2*80 + 1.5*90)}, g.clocks(&k, 256, loop))
	k.Subgroup, k.Kernel = 32, "idx_logits_codes_cm"
	assert.InDelta(t, 4*(353+20+16*16), g.clocks(&k, 256, loop).Issue, 0)

	a := &vk.Adapter{Name: "AMD Radeon RX 7900 XTX (RADV NAVI31)", Driver: vk.DriverRADV}
	text := ModelTable(a, []Choice{c, {Op: "touch", Tokens: 1, Kernels: []Chosen{{Kernel: "kv_touch"}}}})
	assert.Contains(t, text, "| RX 7900 XTX | prefill | 4096 | attn_prefill_cm | 8192 | 40.0 |")
	assert.NotContains(t, text, "touch")
	assert.NotContains(t, text, "Strix Halo")
	assert.Contains(t, ModelTable(&vk.Adapter{Name: "llvmpipe"}, nil), "no estimates")
}

// A layer is the sum of its kernels, of which those of one task with the same bytes share it.
func TestLayerText(t *testing.T) {
	a := &vk.Adapter{Name: "AMD Radeon RX 7900 XTX (RADV NAVI31)", Driver: vk.DriverRADV}
	round := func(items uint32) Chosen {
		return Chosen{Kernel: "idx_topk", Constants: []uint32{1024, items, 0, 11, 64},
			Listing: Listing{amd: true, All: Counts{Vector: 96e5}}}
	}
	merge := Chosen{Kernel: "attn_merge_da", Constants: []uint32{5, 4}} // nothing but bytes: 82 * 512 of a head and token
	text := LayerText(a, []Choice{
		{Op: "decode", Tokens: 1000, Kernels: []Chosen{merge}},
		{Op: "selection", Tokens: 96, Kernels: []Chosen{round(16), round(20)}},
		{Op: "selection", Tokens: 1000, Kernels: []Chosen{round(16)}},
		{Op: "unknown", Tokens: 1000, Kernels: []Chosen{{Kernel: "unknown"}}},
	})
	merged, rounds := 1000*64*82*512/960e3, func(tokens float64) float64 { return 2 * tokens / 96 * 16 * 96e5 / 2.5e3 }
	for tokens, us := range map[int]float64{1000: merged + rounds(1000), 96: rounds(96)} {
		assert.Contains(t, text, fmt.Sprintf("a C4A layer of %d tokens: %.0[2]f to %.0[2]f us\n", tokens, us))
	}
	assert.Empty(t, LayerText(&vk.Adapter{Name: "llvmpipe"}, nil))
}

// Turns of loops around each other multiply, and workgroups take over turns until each compute unit
// has one.
func TestModelTurns(t *testing.T) {
	inner := Counts{Vector: 10}
	around := inner.plus(Counts{Vector: 5}, 1)
	k := Chosen{Kernel: "idx_logits_dot", Constants: []uint32{64, 1, 16}, Listing: Listing{amd: true, Loop: inner,
		Around: []Counts{around, around}, All: around.plus(Counts{Vector: 7}, 1)}}
	c := Choice{Op: "selection", Tokens: 1}
	g := GPU{Units: 64}
	e, ok := g.estimate(&c, &k)
	require.True(t, ok)
	assert.Equal(t, []float64{256, 8}, []float64{e.groups, e.turns})
	assert.InDelta(t, 2*(8*(10+5)+7)*256/64, e.all.Issue, 0)

	k = Chosen{Kernel: "attn_decode_cm", Constants: []uint32{64, 64, 16, 32, 256, 32, 16, 16, 16, 8, 1}, Subgroup: 32,
		Listing: Listing{Loop: inner, All: around}}
	c.Op = "decode"
	for units, want := range map[int][]float64{2: {4, 20}, 8: {8, 10}, 500: {80, 1}} {
		g.Units = units
		e, _ := g.estimate(&c, &k)
		assert.Equal(t, want, []float64{e.groups, e.turns}, "%d units", units)
		assert.InDelta(t, 4*(want[1]*10+5)*max(1, want[0]/float64(units)), e.all.Issue, 1e-9, "%d units", units)
	}
}
