package attention

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// accumulators returns the words that opkit.MatrixLayout finds where accumulators lie in lanes with
// `parts` lanes a row and columns as `column` gives them.
func accumulators(m, n, k, subgroup, parts int, column func(part, place int) int) []uint32 {
	words := make([]uint32, m*k+k*n, m*k+k*n+m*n)
	each := n / parts
	for i := range m * n / subgroup {
		for l := range subgroup {
			words = append(words, uint32((l/parts+i/each*(subgroup/parts))*n+column(l%parts, i%each)))
		}
	}
	return words
}

func TestLaneParts(t *testing.T) {
	nvidia := accumulators(16, 16, 16, 32, 4, func(part, place int) int { return 2*part + place%2 + 8*(place/2) })
	assert.Equal(t, 4, laneParts(16, 16, 16, 32, nvidia), "NVIDIA's layout: parts")
	assert.Equal(t, 8, laneParts(8, 8, 8, 8, accumulators(8, 8, 8, 8, 8, func(part, place int) int { return part })),
		"lavapipe's layout: parts")
	moved := slices.Clone(nvidia)
	moved[512], moved[513] = moved[513], moved[512]
	outside := slices.Clone(nvidia)
	outside[700] = 1 << 20
	for name, words := range map[string][]uint32{
		"two lanes exchanged": moved, "no element": outside, "too few": nvidia[:700], "nothing written": make([]uint32, 768),
		"neighbours":   accumulators(16, 16, 16, 32, 4, func(part, place int) int { return 4*part + place }),
		"a column":     accumulators(16, 16, 16, 32, 16, func(part, place int) int { return 15 - part }), // as on RDNA, but for the order
		"other halves": accumulators(16, 16, 16, 32, 4, func(part, place int) int { return (2*part + place%2 + 8*(place/2)) ^ 8 }),
	} {
		assert.Equal(t, 0, laneParts(16, 16, 16, 32, words), "%s: parts", name)
	}
}

// The tilings that devices have room for; their sum of shared memory is that of the modules.
func TestLaneTilings(t *testing.T) {
	for _, c := range []struct {
		device               string
		heads, parts         int
		profile              string
		hg, subgroups, split int // 0: none
	}{
		{"H100", 128, 4, "hopper", 64, 8, 4},
		{"H100", 64, 4, "hopper", 64, 8, 4},
		{"H100", 33, 4, "hopper", 64, 8, 4},
		{"H100", 32, 4, "hopper", 0, 0, 0}, // half of the heads would be padding
		{"H100", 64, 0, "hopper", 0, 0, 0},
		{"RDNA3", 64, 4, "generic", 0, 0, 0}, // for want of registers
		{"Arc B", 64, 4, "generic", 0, 0, 0},
		{"lavapipe", 64, 8, "generic", 0, 0, 0},
		{"lavapipe", 64, 8, "cpu", 32, 8, 4}, // LaneHeads
		{"lavapipe", 17, 8, "cpu", 32, 8, 4},
		{"lavapipe", 16, 8, "cpu", 0, 0, 0},
	} {
		f := known(t, c.device)
		f.tune = profile(t, c.profile)
		got, ok := f.lanes(f.caps.CoopMat[min(1, len(f.caps.CoopMat)-1)], c.heads, c.parts)
		assert.True(t, ok == (c.hg > 0) && got.heads == c.hg && got.subgroups == c.subgroups &&
			got.kSplit == c.split,
			"%s, %d heads, %d parts: %+v, %v, want %d heads, %d subgroups, split by %d", c.device, c.heads, c.parts, got, ok,
			c.hg, c.subgroups, c.split)
		if !ok {
			continue
		}
		constants := append([]uint32{uint32(got.heads), uint32(got.tile)}, got.constants()...)
		for name, first := range map[string][]uint32{
			"attn_prefill_lanes_cm": nil, "attn_prefill_lanes_cmb": nil, "attn_decode_lanes_cm": {64, 2}, "attn_decode_lanes_cmb": {64, 2},
		} {
			bytes, err := module(t, name).SharedBytes(append(first, constants...)...)
			assert.NoError(t, err, "%s on %s, %d heads", name, c.device, c.heads)
			assert.Equal(t, got.sharedBytes(), bytes, "%s on %s, %d heads", name, c.device, c.heads)
		}
	}
}
