package attention

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
)

// hopper returns the tilings of an H100 for 64 heads or more.
func hopper(t testing.TB) (*tuning.Attention, []tiling) {
	tune := profile(t, "hopper")
	caps := knowncaps.Matrix["H100"]
	list, err := tilings(tune, &caps, "attn_decode", opkit.CMB, 128)
	require.NoError(t, err)
	lanes, ok := matrixFit{&caps, tune}.lanes(caps.CoopMat[1], 128, 4)
	require.True(t, ok)
	first := lanes.tiling(1)
	first.code = tuning.LanesCode
	return &tune.Attention, append([]tiling{first}, list...)
}

// Rows are not split where parts would be too small, where there is nothing to split, and where all
// workgroups have work.
func TestWhole(t *testing.T) {
	tune, h100 := hopper(t)
	for _, c := range []struct{ tokens, width, workgroups int }{
		{1, 0, 128}, {1, 1, 128}, {1, 31, 128}, {1, 63, 128}, {0, 0, 128}, {128, 640, 128}, {1000, 640, 128}, {4096, 8320, 128}, {1, 640, 1},
	} {
		s := splitter{tune: tune, heads: 64, tilings: h100, workgroups: c.workgroups}
		assert.Equal(t, 1, s.plan(c.tokens, c.width).splits, "%+v: parts", c)
	}
	s := splitter{tune: tune, heads: 1, tilings: h100[2:], workgroups: 100000}
	assert.Equal(t, MaxSplits, s.plan(1, 32*8192).splits, "a device without end: parts")
}

// Every part has a tile, no more workgroups run than were wanted, and the scratch
// of a maximum suits every smaller number of tokens and narrower lists.
func TestSplitProperties(t *testing.T) {
	tune := &profile(t, "generic").Attention
	for i, heads := range []int{1, 8, 17, 64, 128} {
		s := splitter{tune: tune, heads: heads, tilings: []tiling{{heads: 8, tile: 8, cost: 1}, {heads: 4, tile: 8, perUnit: 1 + i%2, cost: 0.75}}, workgroups: []int{132, 16, 60, 96, 128}[i]}
		for _, width := range []int{0, 1, 61, 128, 640, 1152, 8320} {
			most := s.scratchBytes(200, width)
			for tokens := 1; tokens <= 200; tokens++ {
				n := s.splits(tokens, width)
				tiles := opkit.CeilDiv(width, 8)
				require.False(t, n < 1 || n > MaxSplits ||
					n > 1 && (n > tiles || (n-1)*opkit.CeilDiv(tiles, n) >= tiles),
					"%d heads, %d tokens, width %d: %d parts of %d tiles", heads, tokens, width, n, tiles)
				build := s.plan(tokens, width).build
				require.False(t, n > 1 && n*tokens*opkit.CeilDiv(heads, s.tilings[build].heads) > tune.Waves*s.room(s.tilings[build]),
					"%d heads, %d tokens, width %d: %d parts are too many workgroups", heads, tokens, width, n)
				require.False(t, n > 1 && partialBytes(tokens, n, heads) > most,
					"%d heads, %d tokens, width %d: scratch for 200 tokens is too small", heads, tokens, width)
			}
		}
	}
	fixed := splitter{tune: tune, heads: 8, tilings: []tiling{{heads: 8, tile: 8, cost: 1}}, fixed: 3, workgroups: 128}
	assert.Equal(t, uint64(5*3*8*16+128+5*3*8*2048), fixed.scratchBytes(5, 100), "fixed parts: bytes")
}

// What an H100's builds are given to do: fewer heads per workgroup while compute units would stand
// idle.
func TestPlan(t *testing.T) {
	tune, h100 := hopper(t)
	for _, c := range []struct{ heads, tokens, width, hg, splits int }{
		{64, 1, 640, 16, 20}, {64, 2, 640, 16, 10}, {64, 3, 640, 16, 10}, {64, 4, 640, 16, 7}, {64, 8, 640, 16, 4}, {64, 16, 640, 32, 4}, {64, 32, 640, 64, 4}, {64, 48, 640, 64, 2}, {64, 64, 640, 64, 2},
		{64, 128, 640, 64, 1}, {64, 256, 640, 64, 1}, {64, 4096, 640, 64, 1},
		{64, 2, 1280, 16, 14}, {64, 4, 1280, 16, 8}, {64, 8, 1280, 32, 8}, {128, 1, 1152, 16, 12}, {128, 8, 1152, 64, 8}, {128, 32, 1152, 64, 2}, {128, 64, 1152, 64, 1}, {128, 128, 1152, 64, 1},
		{64, 1, 128, 16, 4}, {64, 32, 128, 16, 1}, {64, 64, 128, 32, 1}, {64, 128, 128, 64, 1}, {128, 8, 128, 16, 1}, {128, 32, 128, 32, 1},
		{64, 1, 8320, 32, 52}, {64, 8, 8320, 64, 16}, {128, 32, 8320, 64, 2}, {64, 1, 0, 16, 1}, {64, 1, 16, 16, 1},
	} {
		s := splitter{tune: tune, heads: c.heads, tilings: h100, workgroups: 128}
		got := s.plan(c.tokens, c.width)
		require.Equal(t, c.hg, h100[got.build].heads, "%d heads, %d tokens, width %d", c.heads, c.tokens, c.width)
		assert.Equal(t, c.splits, got.splits, "%d heads, %d tokens, width %d", c.heads, c.tokens, c.width)
	}
}

// Devices of other sizes, and numbers of tokens that fit none: parts make up for what whole rows
// leave idle, in one wave or several.
func TestPlanWaves(t *testing.T) {
	tune, h100 := hopper(t)
	for _, c := range []struct{ units, heads, tokens, width, hg, splits int }{
		{132, 64, 33, 640, 64, 4}, {132, 64, 44, 640, 64, 3}, {132, 64, 66, 1152, 64, 2}, {132, 128, 33, 8320, 64, 2}, // to the last unit
		{132, 128, 44, 8320, 64, 3}, {132, 64, 72, 8320, 64, 5}, {132, 64, 160, 1152, 64, 2}, // in two, three waves
		{132, 64, 130, 8320, 64, 1}, {132, 64, 4096, 1152, 64, 1}, // nothing to gain
		{60, 64, 33, 8320, 64, 5}, {60, 64, 60, 640, 64, 1}, {16, 64, 1, 640, 16, 4},
	} {
		s := splitter{tune: tune, heads: c.heads, tilings: h100, workgroups: c.units}
		got := s.plan(c.tokens, c.width)
		require.Equal(t, c.hg, h100[got.build].heads,
			"%d units, %d heads, %d tokens, width %d", c.units, c.heads, c.tokens, c.width)
		assert.Equal(t, c.splits, got.splits,
			"%d units, %d heads, %d tokens, width %d", c.units, c.heads, c.tokens, c.width)
	}
}
