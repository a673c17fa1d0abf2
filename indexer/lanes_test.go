package indexer

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/shaders"
	"github.com/vkmla/vkmla/vk"
)

// inLanes returns the words that opkit.MatrixLayout finds where matrices lie as laneParts wants
// them and `parts` lanes share a row, with K positions and columns by part and place as given.
func inLanes(m, n, k, subgroup, parts int, position func(part, place int) int) []uint32 {
	bases := subgroup / parts
	var words []uint32
	one := func(rows, length int, at func(row, position int) int) {
		each := length / parts
		for i := range rows * length / subgroup {
			for l := range subgroup {
				words = append(words, uint32(at(l/parts+i/each*bases, position(l%parts, i%each))))
			}
		}
	}
	one(m, k, func(row, position int) int { return row*k + position })
	one(n, k, func(row, position int) int { return position*n + row })
	one(m, n, func(row, position int) int { return row*n + position })
	return words
}

func TestLaneParts(t *testing.T) {
	pairs := func(part, place int) int { return 2*part + place%2 + 8*(place/2) } // NVIDIA's 16x16x16
	single := func(part, place int) int { return part }                          // lavapipe's 8x8x8
	nvidia := inLanes(16, 16, 16, 32, 4, pairs)
	assert.Equal(t, 4, laneParts(16, 16, 16, 32, nvidia), "NVIDIA's layout: parts")
	assert.Equal(t, 8, laneParts(8, 8, 8, 8, inLanes(8, 8, 8, 8, 8, single)), "lavapipe's layout: parts")
	// The same numbers in other lanes or components.
	rows := make([]uint32, 0, 768) // a lane has a whole row, as on RDNA
	for range 3 {
		for i := range uint32(8) {
			for l := range uint32(32) {
				rows = append(rows, l%16*16+l/16*8+i)
			}
		}
	}
	swapped := slices.Clone(nvidia)
	for l := range 32 { // two K positions of B, but not of A
		swapped[256+l], swapped[256+32+l] = swapped[256+32+l], swapped[256+l]
	}
	moved := slices.Clone(nvidia)
	moved[0], moved[1] = moved[1], moved[0]
	outside := slices.Clone(nvidia)
	outside[700] = 1 << 20
	for name, words := range map[string][]uint32{"whole rows": rows, "another B": swapped, "two lanes exchanged": moved, "no element": outside, "too few": nvidia[:700]} {
		assert.Equal(t, 0, laneParts(16, 16, 16, 32, words), "%s: parts", name)
	}
}

func TestLaneShares(t *testing.T) {
	x := laneTiling{m: 16, subgroups: hopper().Logits.LaneSubgroups}
	for _, c := range []struct{ rows, entries, want int }{
		{1, 4096, 257},     // a tile each, and one more in case the first entry is no tile's first
		{1, 262144, 264},   // a full device
		{32, 32768, 8},     // nearly so
		{32, 33824, 8},     // 9 would be 24 workgroups too many
		{128, 32768, 8},    // several waves
		{128, 33824, 8},    // 9 would be one wave more
		{128, 262144, 64},  // many, of 4096 entries
		{4096, 4096, 1},    // prefill
		{512, 8192, 1},     // of a longer context: queries are loaded once
		{4096, 262144, 25}, // of a long one
		{1, 1, 2},
	} {
		assert.Equal(t, c.want, x.shares(&hopper().Logits, 264, c.rows, c.entries),
			"%d rows of %d entries: shares", c.rows, c.entries)
	}
	x.subgroups, x.kept = hopper().Logits.KeptSubgroups, 1 // one has a compute unit for itself
	for _, c := range []struct{ rows, entries, want int }{{1, 262144, 132}, {32, 32768, 4}, {32, 262144, 41}} {
		assert.Equal(t, c.want, x.shares(&hopper().Logits, 264, c.rows, c.entries),
			"%d rows of %d entries, some queries kept: shares", c.rows, c.entries)
	}
	x.subgroups, x.kept = 2*hopper().Logits.LaneSubgroups, 0 // half as many workgroups are as many subgroups
	for _, c := range []struct{ rows, entries, want int }{{1, 4096, 132}, {1, 262144, 132}, {8, 32768, 16}, {32, 32768, 4}} {
		assert.Equal(t, c.want, x.shares(&hopper().Logits, 264, c.rows, c.entries),
			"%d rows of %d entries whose queries are raw: shares", c.rows, c.entries)
	}
}

// InLanes tells, for the tests, whether cm is idx_logits_lanes.
func InLanes(o *Logits) bool { return o.inLanes }

// The shared memory of selections is what it is taken to be.
func TestTopKLanesShared(t *testing.T) {
	k, err := shaders.Get("idx_topk_lanes")
	require.NoError(t, err)
	m, err := spirv.Parse(k.SPIRV)
	require.NoError(t, err)
	c := &vk.Caps{SharedMemory: 48 << 10, MaxWorkgroupInvocations: 1024, MinSubgroupSize: 32, MaxSubgroupSize: 32,
		Features: map[string]bool{"subgroupShuffle": true, "subgroupSizeControl": true, "computeFullSubgroups": true}}
	for _, k := range []int{1, MaxK} {
		shapes := laneShapes(c, &hopper().TopK, k, 0)
		assert.Len(t, shapes, 2, "k %d: shapes", k)
		for _, s := range shapes {
			got, err := m.SharedBytes(s.constants(k, 64)...)
			assert.NoError(t, err, "k %d", k)
			assert.Equal(t, s.shared(k), got, "k %d", k)
		}
	}
	c.MinSubgroupSize, c.MaxSubgroupSize, c.MaxWorkgroupInvocations = 4, 4, 256
	s := laneShapes(c, &hopper().TopK, 512, 0)
	assert.False(t, len(s) == 0 || s[0].threads != 128 || s[0].subgroup != 4 || s[0].bits != 10,
		"with subgroups of 4: shapes %v", s)
	c.Features["computeFullSubgroups"] = false
	assert.Nil(t, laneShapes(c, &hopper().TopK, 512, 0), "without full subgroups: shapes")
}

// Rows are not cut without need, nor finer than the lists of slices allow.
func TestLaneSlices(t *testing.T) {
	for _, c := range []struct{ rows, columns, k, most, want int }{
		{1, 9216, 512, 16, 1}, {1, 9220, 512, 16, 2}, {1, 16384, 512, 16, 4}, {1, 32768, 512, 16, 8}, {1, 33824, 512, 16, 8},
		{1, 65536, 512, 16, 8}, {1, 131072, 512, 16, 16}, {1, 32768, 1024, 16, 4}, {1, 65536, 1024, 16, 8}, {1, 131072, 1024, 16, 8}, {1, 65536, 1024, 1, 1},
		{16, 32768, 512, 16, 8}, {32, 32768, 512, 16, 4}, {64, 32768, 512, 16, 2}, {65, 32768, 512, 16, 1},
	} {
		assert.Equal(t, c.want, laneSlices(&hopper().TopK, 128, c.rows, c.columns, c.k, c.most, 9216),
			"%d rows of %d columns, k %d: slices", c.rows, c.columns, c.k)
	}
}

// The kernels' shared memory is what their comment says.
func TestLanesShared(t *testing.T) {
	for stem, x := range map[string]struct {
		laneTiling
		picks *scorePicks
		bytes int
	}{
		"idx_logits_lanes_cm": {laneTiling{m: 16, n: 16, k: 16, subgroup: 32, subgroups: 8, heads: 64, parts: 4}, nil, 276 * 64},
		"idx_logits_lanes_raw_cm": {
			laneTiling{m: 16, n: 16, k: 16, subgroup: 32, subgroups: 16, heads: 64, parts: 4, raw: true}, nil, 408 * 64},
		"idx_logits_lanes_picks_cm": {
			laneTiling{m: 16, n: 16, k: 16, subgroup: 32, subgroups: 16, heads: 64, parts: 4, raw: true}, &scorePicks{512, 9216, 11, 64}, 45648},
	} {
		k, err := shaders.Get(stem)
		require.NoError(t, err)
		m, err := spirv.Parse(k.SPIRV)
		require.NoError(t, err)
		constants, want := append([]uint32{64, 1}, x.constants(false, 0)...), x.sharedBytes()
		if x.picks != nil {
			constants, want = append(constants, x.picks.constants(x.threads())...), x.picks.sharedBytes(x.laneTiling)
		}
		got, err := m.SharedBytes(constants...)
		assert.NoError(t, err, stem)
		require.Equal(t, want, got, stem)
		assert.Equal(t, x.bytes, got, stem)
	}
}

// Tokens share keys where enough of a request are beside each other and registers hold the queries,
// and the kernel's shared memory is what its comment says.
func TestPromptFit(t *testing.T) {
	hopper := hopper()
	caps := knowncaps.Matrix["H100"]
	lanes := laneTiling{m: 16, n: 16, k: 16, subgroup: 32, subgroups: 8, heads: 64, parts: 4}
	for _, c := range []struct {
		about  string
		want   bool
		change func(cfg *LogitsConfig, caps *vk.Caps, tune *tuning.Profile)
	}{
		{"a prompt", true, func(*LogitsConfig, *vk.Caps, *tuning.Profile) {}},
		{"MXFP4", true, func(cfg *LogitsConfig, _ *vk.Caps, _ *tuning.Profile) { cfg.Format = cache.IndexKeyMXFP4 }},
		{"few tokens of a request", false, func(cfg *LogitsConfig, _ *vk.Caps, _ *tuning.Profile) { cfg.Group = 127 }},
		{"raw queries", false, func(cfg *LogitsConfig, _ *vk.Caps, _ *tuning.Profile) { cfg.Raw = true }},
		{"tops", false, func(cfg *LogitsConfig, _ *vk.Caps, _ *tuning.Profile) { cfg.tops = true }},
		{"32 KiB", false, func(_ *LogitsConfig, caps *vk.Caps, _ *tuning.Profile) { caps.SharedMemory = 32 << 10 }},
		{"128 registers", false, func(_ *LogitsConfig, _ *vk.Caps, tune *tuning.Profile) { tune.Device.MaxRegisters = 128 }},
	} {
		cfg, caps, tune := LogitsConfig{Heads: 64, Format: cache.IndexKeyFP8, Page: 64, Group: 128}, caps, *hopper
		c.change(&cfg, &caps, &tune)
		x, ok := promptFit(&caps, &tune, cfg, lanes)
		assert.Equal(t, c.want, ok, c.about)
		if ok {
			k, err := shaders.Get("idx_logits_prompt_cm")
			require.NoError(t, err)
			m, err := spirv.Parse(k.SPIRV)
			require.NoError(t, err)
			got, err := m.SharedBytes(append([]uint32{64, uint32(cfg.Format)}, x.constants()...)...)
			assert.NoError(t, err, c.about)
			assert.Equal(t, x.sharedBytes(), got, c.about)
			assert.Equal(t, 552*16*4+4*64*8, got, c.about)
		}
	}
	x, _ := promptTilingOf(&caps, &hopper.Logits, LogitsConfig{Format: cache.IndexKeyFP8}, lanes)
	for _, c := range []struct{ tokens, entries, x, y int }{
		{512, 8192, 2, 64}, {512, 2048, 2, 64}, {4096, 8192, 1, 512}, {9, 8192, 66, 2}, {512, 16384, 4, 64},
	} {
		gotX, gotY := x.grid(&hopper.Logits, 132, c.tokens, c.entries)
		assert.Equal(t, [2]int{c.x, c.y}, [2]int{gotX, gotY}, "%d tokens of %d entries", c.tokens, c.entries)
	}
}
