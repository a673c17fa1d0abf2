package attention_test

import (
	"testing"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/internal/testkit"
	"github.com/vkmla/vkmla/shaders"
)

func TestPushLayouts(t *testing.T) { testkit.PushLayouts(t, "attn_", attention.PushLayouts) }

// The base builds at their larger tiling, against the comment of baseTiling.
func TestBaseTiling(t *testing.T) {
	for name, first := range map[string][]uint32{"attn_decode": {64, 2}, "attn_prefill": nil} {
		k, err := shaders.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := spirv.Parse(k.SPIRV)
		if err != nil {
			t.Fatal(err)
		}
		for hg, want := range map[uint32]int{4: 15248, 8: 21664} {
			if got, err := m.SharedBytes(append(first, hg, 8)...); err != nil || got != want {
				t.Errorf("%s with %d heads: %d bytes of shared memory, %v, want %d", name, hg, got, err, want)
			}
		}
	}
}
