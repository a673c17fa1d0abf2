package indexer

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
		if !strings.HasPrefix(name, "idx_") {
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
