package attention

import (
	"slices"
	"testing"

	"github.com/vkmla/vkmla/internal/knowncaps"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// inLanes is what opkit.MatrixLayout finds where square matrices of n rows lie as rowLanes wants
// them, a row in so many lanes.
func inLanes(n, subgroup, lanes int, column func(lane, v int) int) []uint32 {
	words := make([]uint32, 0, 3*n*n)
	each := n / lanes
	for matrix := range 3 {
		for i := range n * n / subgroup {
			for l := range subgroup {
				r, c := l/lanes+i/each*(subgroup/lanes), column(l%lanes, i%each)
				if matrix == 1 {
					r, c = c, r
				}
				words = append(words, uint32(r*n+c))
			}
		}
	}
	return words
}

func TestRowLanes(t *testing.T) {
	nvidia := inLanes(16, 32, 4, func(lane, v int) int { return 2*lane + v%2 + 8*(v/2) })
	if got := rowLanes(16, 32, nvidia); got != 4 {
		t.Errorf("NVIDIA's layout: %d lanes, want 4", got)
	}
	if got := rowLanes(8, 8, inLanes(8, 8, 8, func(lane, _ int) int { return lane })); got != 8 {
		t.Errorf("lavapipe's layout: %d lanes, want 8", got)
	}
	straight := inLanes(16, 32, 4, func(lane, v int) int { return 4*lane + v })
	swapped := slices.Clone(nvidia)
	swapped[512], swapped[513] = swapped[513], swapped[512] // of C only
	outside := slices.Clone(nvidia)
	outside[300] = 1 << 31
	for name, words := range map[string][]uint32{"four neighbours": straight, "another C": swapped, "no element": outside, "nothing written": slices.Repeat([]uint32{^uint32(0)}, 768), "too few": nvidia[:700]} {
		if got := rowLanes(16, 32, words); got != 0 {
			t.Errorf("%s: %d lanes, want none", name, got)
		}
	}
}

// TestLanesTiling holds the tiling for an H100 and those for lavapipe against what the
// shader assumes, and the sum of shared memory against the modules.
func TestLanesTiling(t *testing.T) {
	for _, c := range []struct {
		device string
		t      cmTiling
		lanes  int
		kSplit int
		fits   bool
	}{
		{"H100", cmTiling{m: 16, n: 16, k: 16, heads: 64, tile: 16, subgroup: 32, subgroups: 8}, 4, 2, true},
		{"H100", cmTiling{m: 16, n: 16, k: 16, heads: 32, tile: 16, subgroup: 32, subgroups: 8}, 4, 4, false}, // a share is half a row
		{"lavapipe", cmTiling{m: 8, n: 8, k: 8, heads: 64, tile: 8, subgroup: 8, subgroups: 8}, 8, 1, true},
		{"lavapipe", cmTiling{m: 8, n: 8, k: 8, heads: 32, tile: 8, subgroup: 8, subgroups: 8}, 8, 2, true},
		{"lavapipe", cmTiling{m: 8, n: 8, k: 8, heads: 16, tile: 8, subgroup: 8, subgroups: 8}, 8, 4, false}, // no four scores
	} {
		caps := knowncaps.Matrix[c.device]
		got := c.t
		if fits := got.fitLanes(&caps) && got.shares(c.lanes); fits != c.fits || fits && got.kSplit != c.kSplit {
			t.Errorf("%s: %+v, fits %v, want %v with kSplit %d", c.device, got, fits, c.fits, c.kSplit)
		}
		if !c.fits {
			continue
		}
		for _, name := range []string{"attn_decode_lanes_cm", "attn_decode_lanes_cmb"} {
			k, err := shaders.Get(name)
			if err != nil {
				t.Fatal(err)
			}
			m, err := spirv.Parse(k.SPIRV)
			if err != nil {
				t.Fatal(err)
			}
			constants := append([]uint32{64, 2, uint32(got.heads), uint32(got.tile)}, append(got.constants(), uint32(c.lanes))...)
			if n, err := m.SharedBytes(constants...); err != nil || n != got.lanesSharedBytes() {
				t.Errorf("%s: %d bytes of shared memory, %v, want %d", name, n, err, got.lanesSharedBytes())
			}
		}
	}
}
