package cuts_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/cuts"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestCuts runs scenarios: of DeepSeek-V4 all, of DeepSeek-V4.1 those that cut groups of two.
// VKMLA_TEST_FULL=1 runs all, on a GPU at full length.
func TestCuts(t *testing.T) {
	dev, full := testkit.Device(t), os.Getenv("VKMLA_TEST_FULL") == "1"
	some := []string{"prompt lengths", "restored sessions", "rejected drafts", "truncation", "equal scores"}
	for _, x := range []struct {
		model cuts.Model
		quick []string // scenarios without VKMLA_TEST_FULL; nil: all
	}{{cuts.V4, nil}, {cuts.V41, some}, {cuts.V41InV4Store, []string{}}} {
		o := cuts.Options{Model: x.model, Log: t.Logf}
		if full && (x.model == cuts.V4 || dev.Adapter().Type != vk.TypeCPU) {
			o.Size = cuts.Full
		}
		t.Run(x.model.String(), func(t *testing.T) {
			if !full && x.quick != nil && len(x.quick) == 0 {
				t.Skip("VKMLA_TEST_FULL is not set")
			}
			l, err := cuts.Open(t.Context(), dev, o)
			require.NoError(t, err)
			defer func() { assert.NoError(t, l.Close()) }()
			for _, s := range cuts.Scenarios() {
				if !s.Suits(x.model) || !full && x.quick != nil && !slices.Contains(x.quick, s.Name) {
					continue
				}
				t.Run(s.Name, func(t *testing.T) {
					t.Logf("%v: %s", s.Reports, s.Proves)
					assert.NoError(t, s.Run(t.Context(), l))
				})
			}
		})
	}
}
