package testkit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/spirv"
	"github.com/vkmla/vkmla/shaders"
)

// PushLayouts holds a package's push-constant structures against the blocks in the
// SPIR-V, member by member, for every build of every kernel whose name has the
// prefix. layouts has a structure for each stem, and no stem without a kernel.
func PushLayouts(t *testing.T, prefix string, layouts map[string]any) {
	t.Helper()
	seen := map[string]bool{}
	for _, name := range shaders.Names() {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		stem := name
		for _, v := range []string{opkit.DA, opkit.CM, opkit.CMB, opkit.Dot} {
			stem = strings.TrimSuffix(stem, "_"+v)
		}
		push, ok := layouts[stem]
		if !ok {
			t.Errorf("%s has no push-constant structure", name)
			continue
		}
		seen[stem] = true
		k, err := shaders.Get(name)
		require.NoError(t, err)
		assert.NoError(t, spirv.ComparePush(k.SPIRV, push), name)
	}
	for stem := range layouts {
		assert.True(t, seen[stem], "no kernel %s", stem)
	}
}
