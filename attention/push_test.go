package attention

import (
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// The push-constant structures here against the blocks in the SPIR-V, member by
// member, for every build of every kernel of this package.
func TestPushLayouts(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range shaders.Names() {
		if !strings.HasPrefix(name, "attn_") {
			continue
		}
		stem := name
		for _, v := range []string{VariantDA, VariantCM, VariantCMB} {
			stem = strings.TrimSuffix(stem, "_"+v)
		}
		push, ok := pushLayouts[stem]
		if !ok {
			t.Errorf("%s has no push-constant structure", name)
			continue
		}
		seen[stem] = true
		k, err := shaders.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := spirv.ComparePush(k.SPIRV, push); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for stem := range pushLayouts {
		if !seen[stem] {
			t.Errorf("no kernel %s", stem)
		}
	}
}

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
