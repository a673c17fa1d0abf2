package pipelines

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBankClocks(t *testing.T) {
	lanes := func(step int) (a []int) {
		for l := range 32 {
			a = append(a, l*step)
		}
		return a
	}
	for _, c := range []struct{ step, bytes, clocks, least int }{
		{4, 4, 1, 1}, {2, 2, 1, 1}, {0, 4, 1, 1}, {8, 4, 2, 1},
		{128, 4, 32, 1}, {8, 8, 2, 2}, {16, 8, 4, 2}, {16, 16, 4, 4}, {128, 16, 32, 4},
	} {
		clocks, least := bankClocks(lanes(c.step), c.bytes)
		assert.Equal(t, [2]int{c.clocks, c.least}, [2]int{clocks, least}, "every %d bytes, %d each", c.step, c.bytes)
	}
}

// Rows of fragments have to begin at multiples of 16 bytes, as Vulkan demands of loads of matrices
// (VUID-RuntimeSpirv-OpCooperativeMatrixLoadKHR-08986). Loads of 8 bytes then always leave half of
// the banks idle: no pitch is better than those that the kernels have. One of 8 bytes more would
// be, and so is one where the halves of 16 bytes lie exchanged in every second eight rows.
func TestNoPitchIsBetter(t *testing.T) {
	least := 0
	for pitch := 16; pitch <= 2048; pitch += 16 {
		clocks, one := fragment(pitch, false)
		assert.GreaterOrEqual(t, clocks, 2*one, "%d bytes", pitch)
		least = one
	}
	clocks, _ := fragment(1032, false)
	assert.Equal(t, least, clocks)
	for pitch := 16; pitch <= 2048; pitch += 32 { // odd numbers of 16 bytes
		clocks, one := fragment(pitch, true)
		assert.Equal(t, one, clocks, "%d bytes, exchanged", pitch)
	}
	for _, k := range []Chosen{{Kernel: "attn_decode_cm"}, {Kernel: "attn_prefill_cmb"}, {Kernel: "idx_logits_cm"},
		{Kernel: "proj_linear_cm", Constants: []uint32{3, 0, 128, 32, 16, 16, 16, 128, 128, 32, 64, 64}},
		{Kernel: "proj_linear_cm", Constants: []uint32{3, 0, 128, 32, 16, 16, 16, 64, 64, 64, 64, 16}}} {
		assert.Equal(t, 2., k.Conflicts(), "%s%v", k.Kernel, k.Constants)
	}
	for name, at := range map[string]int{"idx_logits_cm": 14, "attn_decode_cm": 10, "attn_prefill_cmb": 9, "proj_linear_cm": 12} {
		k := Chosen{Kernel: name, Constants: append(make([]uint32, at), 1)}
		assert.Equal(t, 1., k.Conflicts(), name)
	}
}
