package attention

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/vk"
)

// Devices get the forms that they have room for, heads those that they fill. One form fits
// Vulkan's guaranteed limits.
func TestPlainTiling(t *testing.T) {
	tune := &profile(t, "generic").Attention
	h, rdna, cpu := knowncaps.Matrix["H100"], knowncaps.Matrix["RDNA3"], knowncaps.Matrix["lavapipe"]
	least := vk.Caps{SharedMemory: 16384, MaxWorkgroupInvocations: 128}
	for _, c := range []struct {
		name  string
		caps  vk.Caps
		heads int
		want  int
	}{
		{"H100", h, 128, 16}, {"H100", h, 9, 16}, {"H100", h, 8, 8},
		{"H100", h, 4, 4}, {"H100", h, 1, 4}, {"RDNA3", rdna, 64, 16},
		{"lavapipe", cpu, 64, 8}, {"least", least, 64, 4}, {"least", least, 1, 4},
		{"few invocations", vk.Caps{SharedMemory: 65536, MaxWorkgroupInvocations: 128}, 64, 8},
	} {
		assert.Equal(t, c.want, plainTiling(tune, &c.caps, c.heads).heads, "%s, %d heads: workgroups", c.name, c.heads)
	}
}

// Parts of the plain kernels on an H100: a workgroup for each multiprocessor, as far as rows and
// tokens go. The first three are the best of those that were measured.
func TestPlanPlain(t *testing.T) {
	caps, tune := knowncaps.Matrix["H100"], &profile(t, "hopper").Attention
	for _, c := range []struct{ heads, tokens, width, splits int }{
		{64, 1, 640, 20}, {64, 8, 640, 4}, {64, 32, 640, 1}, {64, 128, 640, 1},
		{64, 1, 128, 4}, {64, 8, 128, 4}, {64, 32, 128, 1}, {128, 1, 1152, 15}, {128, 8, 1152, 2}, {64, 1, 8320, 33},
	} {
		s := splitter{tune: tune, heads: c.heads, tilings: []tiling{plainTiling(tune, &caps, c.heads)}, workgroups: 132}
		assert.Equal(t, c.splits, s.splits(c.tokens, c.width),
			"%d heads, %d tokens, width %d: parts", c.heads, c.tokens, c.width)
	}
}
